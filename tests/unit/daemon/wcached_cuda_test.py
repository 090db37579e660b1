#!/usr/bin/env python3
"""Real wcached processes on a fake machine with GPUs: which device they touch, what they hold, how they fail."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ["WCACHE_BIN_DIR"])
LIBRARY = BIN.parent / "tests" / "libwcache_fake_cuda.so"
WAIT = 60  # seconds, for anything that should take a moment

sys.path.insert(0, str(SOURCE / "tests" / "fake_cuda"))
from fake_gpu import FakeGpu  # noqa: E402


def uuid(device):
    return "GPU-" + FakeGpu.default_uuid(device)


class WcachedOnCuda(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name)
        self.model = self.make_model("model", 1)
        self.gpu = FakeGpu(str(LIBRARY), {"devices": 2})
        self.addCleanup(self.gpu.close)
        self.daemons = []
        self.addCleanup(self.stop_all)

    def tearDown(self):
        self.assertEqual(self.gpu.errors(), "")

    def make_model(self, name, seed):
        subprocess.run([sys.executable, SOURCE / "tests/tools/make_checkpoint.py", "--kind", "demo", "--size", "20M",
                        "--seed", str(seed), self.root / name], check=True, stdout=subprocess.DEVNULL)
        return self.root / name

    def environment(self, **variables):
        return dict(self.gpu.environment(), WCACHE_CACHE_DIR=str(self.root / "cache"), **variables)

    def start(self, *options, device=1, model=None, **variables):
        words = [BIN / "wcached", "--model", model or self.model, "--run-dir", self.root / "run", *options]
        if device is not None:
            words += ["--device", "cuda:" + uuid(device), "--slab-size", "4M"]
        daemon = subprocess.Popen(words, env=self.environment(**variables), stderr=subprocess.PIPE, text=True)
        self.daemons.append(daemon)
        return daemon

    def stop_all(self):
        for daemon in self.daemons:
            if daemon.poll() is None:
                daemon.kill()
            daemon.wait()
            daemon.stderr.close()

    def wcache(self, *words):
        done = subprocess.run([BIN / "wcache", *words, "--run-dir", self.root / "run"], env=self.environment(),
                              capture_output=True, text=True, timeout=WAIT)
        return done.returncode, done.stdout

    def ranks(self):
        groups = json.loads(self.wcache("status", "--json")[1])["groups"]
        return {rank["pid"]: rank for group in groups for rank in group["ranks"]}

    def wait_ready(self, daemon):
        end = time.monotonic() + WAIT
        while time.monotonic() < end:
            rank = self.ranks().get(daemon.pid, {})
            if rank.get("state") == "ready":
                return rank
            self.assertIsNone(daemon.poll(), "wcached ended: " + (daemon.stderr.read() if daemon.poll() else ""))
            time.sleep(0.02)
        self.fail("not ready")

    def failure(self, daemon):
        errors = daemon.communicate(timeout=WAIT)[1]
        return daemon.returncode, errors

    def end(self, daemon):
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=WAIT), 0)

    def test_only_its_own_device_is_touched_whatever_is_visible(self):
        for visible in ("0", "7", uuid(0), ""):
            with self.subTest(visible=visible):
                daemon = self.start("--ipc", "vmm", CUDA_VISIBLE_DEVICES=visible)
                rank = self.wait_ready(daemon)
                self.assertEqual(rank["device_uuid"], uuid(1))
                self.assertEqual((rank["tier"], rank["ipc_kind"], rank["survives"]), ("cuda", "cuda-vmm", True))
                self.assertGreater(self.gpu.used_bytes(1), 20 << 20)
                self.assertEqual(rank["device_nbytes"], self.gpu.used_bytes(1))
                self.assertEqual(self.gpu.used_bytes(0), 0)
                counters = self.gpu.counters(daemon.pid)
                self.assertEqual((counters["contexts_made.0"], counters["contexts_made.1"]), (0, 1))
                self.assertEqual(counters["pageable_copies"], 0)
                self.end(daemon)
                self.assertEqual(self.gpu.leaks(daemon.pid), {})
                self.assertEqual(self.gpu.used_bytes(1), 0)

    def test_a_vmm_daemon_has_a_context_for_reads_alone(self):
        daemon = self.start("--ipc", "vmm")
        self.assertIs(self.wait_ready(daemon)["cuda_context"], False)
        self.assertEqual(self.gpu.contexts(), [])
        code, text = self.wcache("verify")
        self.assertEqual(code, 0, text)
        self.assertEqual(self.gpu.counters(daemon.pid)["contexts_made.1"], 2)
        self.end(daemon)
        self.assertEqual(self.gpu.leaks(daemon.pid), {})

    def test_a_legacy_daemon_keeps_its_context(self):
        daemon = self.start("--ipc", "legacy")
        rank = self.wait_ready(daemon)
        self.assertEqual((rank["ipc_kind"], rank["survives"], rank["cuda_context"]), ("cuda-ipc", False, True))
        self.assertEqual(self.gpu.contexts(), [(1, daemon.pid)])
        self.assertEqual(rank["device_nbytes"], self.gpu.used_bytes(1))
        self.assertRegex(self.wcache("status")[1], r"MiB on the device, a context on the device")
        self.assertEqual(self.wcache("verify")[0], 0)
        self.end(daemon)
        self.assertEqual(self.gpu.leaks(daemon.pid), {})
        self.assertEqual((self.gpu.contexts(), self.gpu.used_bytes(1)), ([], 0))

    def test_in_host_memory_no_driver_is_loaded(self):
        daemon = self.start(device=None)
        rank = self.wait_ready(daemon)
        self.assertEqual(rank["tier"], "host")
        self.assertNotIn("cuda_context", rank)
        self.assertNotIn("device_nbytes", rank)
        self.assertNotIn(LIBRARY.name, pathlib.Path(f"/proc/{daemon.pid}/maps").read_text())
        self.assertEqual(self.gpu.counters(daemon.pid), {})
        self.end(daemon)

    def test_host_and_device_have_one_fingerprint(self):
        daemon = self.start(device=None)
        self.wait_ready(daemon)
        host = json.loads(self.wcache("status", "--json")[1])["groups"][0]["fingerprint"]
        self.end(daemon)
        daemon = self.start()
        self.wait_ready(daemon)
        self.assertEqual(json.loads(self.wcache("status", "--json")[1])["groups"][0]["fingerprint"], host)
        self.end(daemon)

    def test_daemons_share_a_device_until_it_is_full(self):
        self.gpu.configure({"devices": 2, "device.1.memory": 60 << 20, "context_bytes": 4 << 20})
        first = self.start()
        self.wait_ready(first)
        second = self.start(model=self.make_model("second", 2))
        self.wait_ready(second)
        used = self.gpu.used_bytes(1)
        code, errors = self.failure(self.start(model=self.make_model("third", 3)))
        self.assertEqual(code, 7, errors)
        self.assertRegex(errors, f"of device memory are needed, and {uuid(1)} .* free of 60.0 MiB")
        self.assertEqual(self.gpu.used_bytes(1), used)
        self.assertEqual(self.wcache("verify")[0], 0)
        self.end(first)
        self.end(second)

    def test_the_memory_limit_counts_both(self):
        code, errors = self.failure(self.start("--memory-limit", "20M"))
        self.assertEqual(code, 7, errors)
        self.assertIn("--memory-limit", errors)

    def test_killed_it_leaves_nothing(self):
        daemon = self.start()
        self.wait_ready(daemon)
        daemon.kill()
        daemon.wait()
        self.assertEqual(self.gpu.used_bytes(1), 0)

    def test_stopped_while_it_fills(self):
        self.gpu.hold_copies()
        daemon = self.start()
        self.wait_called(daemon, "cuMemcpyHtoDAsync_v2")
        daemon.send_signal(signal.SIGTERM)
        self.gpu.let_copies_go()
        self.assertEqual(daemon.wait(timeout=WAIT), 0)
        self.assertEqual(self.gpu.leaks(daemon.pid), {})
        self.assertEqual(self.gpu.used_bytes(1), 0)

    def wait_called(self, daemon, function):
        end = time.monotonic() + WAIT
        while self.gpu.counters(daemon.pid).get("calls." + function, 0) == 0:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_stopped_while_the_device_does_not_answer(self):
        for ipc in ("vmm", "legacy"):
            with self.subTest(ipc=ipc):
                self.gpu.hold_copies()
                daemon = self.start("--ipc", ipc)
                self.wait_called(daemon, "cuEventRecord")
                daemon.send_signal(signal.SIGTERM)
                code, errors = self.failure(daemon)
                self.assertEqual(code, 0, errors)
                self.assertNotIn("does not end", errors)
                self.assertEqual((self.gpu.contexts(), self.gpu.used_bytes(1)), ([], 0))
                self.gpu.let_copies_go()

    def test_a_device_that_hangs_fails_its_daemon(self):
        for ipc in ("vmm", "legacy"):
            with self.subTest(ipc=ipc):
                self.gpu.hold_copies()
                code, errors = self.failure(self.start("--ipc", ipc, WCACHE_FILL_STALL_MS="3000"))
                self.assertEqual(code, 5, errors)
                self.assertIn("does not reach the device", errors)
                self.assertNotIn("does not end", errors)
                self.assertEqual((self.gpu.contexts(), self.gpu.used_bytes(1)), ([], 0))
                self.gpu.let_copies_go()

    def test_stopped_while_reads_of_the_device_do_not_end(self):
        for ipc in ("vmm", "legacy"):
            with self.subTest(ipc=ipc):
                daemon = self.start("--ipc", ipc)
                self.wait_ready(daemon)
                self.gpu.hold_copies()
                with subprocess.Popen([BIN / "wcache", "verify", "--run-dir", self.root / "run"],
                                      env=self.environment(), stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL) as verify:
                    self.wait_called(daemon, "cuMemcpyDtoHAsync_v2")
                    began = time.monotonic()
                    daemon.send_signal(signal.SIGTERM)
                    code, errors = self.failure(daemon)
                    self.assertEqual(code, 0, errors)
                    # One read alone is given 30 seconds.
                    self.assertLess(time.monotonic() - began, 20)
                    self.assertNotEqual(verify.wait(timeout=WAIT), 0)
                self.assertEqual((self.gpu.contexts(), self.gpu.used_bytes(1)), ([], 0))
                self.gpu.let_copies_go()

    def test_each_trouble_has_its_own_reason(self):
        for config, options, code, words in (
                ({"devices": 2, "attribute.103": 0}, ("--ipc", "vmm"), 1, "cannot give its memory away as descriptors"),
                ({"devices": 1}, (), 1, "sees no device"),
                ({"devices": 2, "init_error": 34}, (), 1, "stub"),
                ({"devices": 2, "driver_version": 11020}, (), 1, "too old"),
                ({"devices": 2}, ("--ipc", "fabric"), 2, "no such way to share device memory")):
            with self.subTest(words=words):
                self.gpu.configure(config)
                got, errors = self.failure(self.start(*options))
                self.assertEqual(got, code, errors)
                self.assertIn(words, errors)
        got, errors = self.failure(self.start(WCACHE_LIBCUDA="/nonexistent/libcuda.so.1"))
        self.assertEqual(got, 1)
        self.assertIn("no CUDA driver", errors)

    def test_a_driver_without_a_function_is_too_old(self):
        library = self.root / "libcuda.so.1"
        (self.root / "driver.c").write_text("int cuInit(unsigned f) { return (int)f; }\n"
                                            "int cuDriverGetVersion(int* v) { *v = 13000; return 0; }\n")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, self.root / "driver.c"], check=True)
        code, errors = self.failure(self.start(WCACHE_LIBCUDA=str(library)))
        self.assertEqual(code, 1, errors)
        self.assertRegex(errors, "too old: .*libcuda.so.1 is of CUDA 13.0 and lacks cu[A-Za-z]+")
        devices = subprocess.run([BIN / "wcached", "--devices"], env=self.environment(WCACHE_LIBCUDA=str(library)),
                                 capture_output=True, text=True, timeout=WAIT)
        self.assertIn("lacks cu", devices.stdout)

    def test_an_exclusive_device_takes_one_process(self):
        self.gpu.configure({"devices": 2, "attribute.20": 3})
        first = self.start("--ipc", "legacy")  # which keeps its context
        self.wait_ready(first)
        code, errors = self.failure(self.start("--ipc", "legacy", model=self.make_model("second", 2)))
        self.assertEqual(code, 1, errors)
        self.assertIn(f"{uuid(1)} (Fake GPU) is in exclusive-process mode, and another process uses it", errors)
        self.assertIn("nvidia-smi -c DEFAULT", errors)
        self.assertEqual(self.wcache("verify")[0], 0)
        self.end(first)
        second = self.start("--ipc", "legacy", model=self.root / "second")
        self.wait_ready(second)
        self.end(second)

    def test_a_mig_instance_is_a_device_of_its_own(self):
        part = "aaaa1111-2222-3333-4444-555566667777"
        self.gpu.configure({"devices": 3, "device.2.uuid": part, "device.2.mig_parent": FakeGpu.default_uuid(1)})
        daemon = self.start("--device", "cuda:MIG-" + part, device=None, CUDA_VISIBLE_DEVICES="0")
        self.assertEqual(self.wait_ready(daemon)["device_uuid"], "MIG-" + part)
        self.assertEqual([self.gpu.used_bytes(device) > 0 for device in range(3)], [False, False, True])
        self.assertEqual(self.wcache("verify")[0], 0)
        self.end(daemon)
        self.assertEqual(self.gpu.leaks(daemon.pid), {})

    def test_without_descriptors_the_default_is_legacy(self):
        self.gpu.configure({"devices": 2, "attribute.103": 0})
        daemon = self.start()
        self.assertEqual(self.wait_ready(daemon)["ipc_kind"], "cuda-ipc")
        self.end(daemon)


if __name__ == "__main__":
    unittest.main()
