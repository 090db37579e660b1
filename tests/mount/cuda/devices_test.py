#!/usr/bin/env python3
"""Which devices a group is on: the default, --device, CUDA_VISIBLE_DEVICES, several ranks, a device's memory, and what
doctor says of each case. The machine is the fake driver's."""

import json
import pathlib
import shutil
import signal
import subprocess
import unittest

import cuda_harness
from cuda_harness import MTP, REAL, CudaTest, attributes, digests_of, eventually

STUB = pathlib.Path("/usr/local/cuda/lib64/stubs/libcuda.so")


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class Devices(CudaTest):
    config = {"devices": 3, "device.2.uuid": "bbbb0000-0000-4000-8000-000000000002"}

    def setUp(self):
        super().setUp()
        self.model = self.make("mimo", "--kind", "mimo")

    def ranks(self, role="target"):
        return [(rank["rank"], rank["device_uuid"], rank["tier"]) for rank in self.groups()[role]["ranks"]]

    def assert_fails(self, code, *mentions, model=None, options=()):
        preload = self.node.preload(model or self.model, *options)
        self.assertEqual(preload.wait(), code, preload.errors)
        for mention in mentions:
            self.assertIn(mention, preload.errors)

    def test_the_default_is_the_first_visible_device(self):
        preload = self.node.preload(self.model)
        preload.ready()
        self.assertEqual(self.ranks(), [(0, self.uuids[0], "cuda")])
        self.assertNotIn("host memory", preload.errors)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()
        self.node.environment["CUDA_VISIBLE_DEVICES"] = "2,0"
        preload = self.node.preload(self.model)
        preload.ready()
        self.assertEqual(self.ranks(), [(0, self.uuids[2], "cuda")])

    def test_the_default_is_host_memory_where_the_driver_cannot_be_used(self):
        for environment, note in [({"WCACHE_LIBCUDA": "/nowhere/libcuda.so.1"}, None),
                                  ({"CUDA_VISIBLE_DEVICES": ""}, "sees no device"),
                                  ({"WCACHE_FAKE_CUDA_FAIL": "cuInit:1=999"}, "starting the CUDA driver"),
                                  ({"WCACHE_FAKE_CUDA_FAIL": "cuInit:1=34"}, "stub")]:
            with self.subTest(environment):
                before = dict(self.node.environment)
                self.node.environment.update(environment)
                preload = self.node.preload(self.model)
                preload.ready()
                self.assertEqual(self.ranks(), [(0, "HOST-0", "host")])
                self.assertEqual(preload.stop(), 0)
                if note:
                    self.assertIn("weights are held in host memory", preload.errors)
                    self.assertIn(note, preload.errors)
                else:
                    self.assertNotIn("host memory", preload.errors)
                self.assert_nothing_left()
                self.assert_fails(1, note or "no CUDA driver", options=["--device", "cuda"])
                self.node.environment = before

    def test_host_memory_is_a_word_away(self):
        self.node.preload(self.model, "--device", "host").ready()
        self.assertEqual(self.ranks(), [(0, "HOST-0", "host")])
        self.assertEqual(self.gpu.used_bytes(0), 0)

    def test_what_is_no_safetensors(self):
        model = self.make("opaque", "--kind", "opaque")
        preload = self.node.preload(model)
        preload.ready()
        self.assertEqual(self.ranks(), [(0, "HOST-0", "host")])
        self.assertIn("no safetensors", preload.errors)
        self.assertEqual(preload.stop(), 0)
        self.assert_fails(1, "no safetensors", model=model, options=["--device", "cuda"])
        self.assert_fails(2, "--ipc is for CUDA devices", "no safetensors", model=model, options=["--ipc", "vmm"])

    def test_named_devices_are_those_whatever_is_visible(self):
        self.node.environment["CUDA_VISIBLE_DEVICES"] = "0"
        preload = self.node.preload(self.model, "--device", f"cuda:{self.uuids[2]}")
        preload.ready()
        self.assertEqual(self.ranks(), [(0, self.uuids[2], "cuda")])
        self.assertEqual((self.gpu.live_allocations(0), self.gpu.live_allocations(1)), (0, 0))
        self.assertGreater(self.gpu.live_allocations(2), 0)
        self.assertEqual(preload.stop(), 0)
        preload = self.node.preload(self.model, "--device", "cuda:GPU-bbbb")
        preload.ready()
        self.assertEqual(self.ranks(), [(0, self.uuids[2], "cuda")], "the beginning is enough")

    def test_names_that_are_none(self):
        self.assert_fails(2, self.uuids[0], self.uuids[1], options=["--device", "cuda:GPU-00000000"])
        self.assert_fails(2, "2 CUDA devices are named", options=["--device", "cuda:GPU-fa4e"])
        self.assert_fails(2, "4 ranks", options=["--device", "cuda", "--tensor-parallel-size", "4"])
        self.assert_fails(2, "twice", options=["--device", f"cuda:{self.uuids[0]},{self.uuids[0]}",
                                               "--tensor-parallel-size", "2"])
        preload = self.node.preload(self.model, "--tensor-parallel-size", "4")
        preload.ready()
        self.assertEqual(self.ranks(), [(0, "HOST-0", "host")])
        self.assertIn("4 ranks on this node need as many CUDA devices, and 3 can be seen", preload.errors)

    def test_two_ranks_of_a_checkpoint_that_is_not_sharded(self):
        self.node.environment["CUDA_VISIBLE_DEVICES"] = "1,0"
        preload = self.node.preload(self.model, "--tensor-parallel-size", 2, "--speculative-config", MTP)
        ready = preload.ready_groups(2)
        target, path = ready["target"]
        _, draft_path = ready["draft0"]
        for role in ("target", "draft0"):
            self.assertEqual(self.ranks(role), [(0, self.uuids[1], "cuda"), (1, self.uuids[0], "cuda")])
            self.assertEqual(self.groups()[role]["tp_size"], 1)
        self.assertEqual(self.node.run("fingerprint", self.model).stdout.splitlines()[0], target)
        self.assert_same_files(self.model, path)
        name = "model-00001-of-00004.safetensors"
        self.assertEqual(self.groups()["target"]["nbytes"],
                         sum(p.stat().st_size for p in self.model.rglob("*") if p.is_file()))
        for file in (path / name, draft_path / "model.safetensors"):
            row = attributes(file)
            self.assertEqual((row["rank"], row["device_uuid"]), (b"0", self.uuids[1].encode()))
            self.assertEqual(row["rank1.device_uuid"], self.uuids[0].encode())
            self.assertIn(self.uuids[0].encode(), row["rank1.ipc_handle"])
            self.assertIn(self.uuids[1].encode(), row["ipc_handle"])
        expected = digests_of(*self.model.glob("*.safetensors"))
        for options in ((), (0,), (1,)):
            engine = self.engine(target, *options)
            self.assertEqual(engine.answer(), expected)
            self.assertEqual(engine.stop(), 0)
        self.assertEqual(self.node.run("verify", target).returncode, 0)
        one = self.node.preload(self.model, "--device", "cuda")
        self.assertEqual(one.wait(), 0, one.errors)
        self.assert_fails(4, "not on " + self.uuids[2], options=["--device", f"cuda:{self.uuids[2]}"])
        routed = json.loads(self.node.run("route", self.model, "--speculative-config", MTP, "--tensor-parallel-size", 2,
                                          "--json").stdout)
        sockets = [rank["socket"] for rank in self.groups()["draft0"]["ranks"]]
        self.assertEqual((routed["socket"], routed["sockets"]), (sockets[0], sockets))
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()

    def test_a_sharded_checkpoint(self):
        model = self.make("sharded", "--kind", "sharded", "--tp", 2)
        preload = self.node.preload(model, "--tensor-parallel-size", 2, "--device", "cuda")
        _, fingerprint, path = preload.ready()
        self.assert_same_files(model, path)
        self.assertEqual(self.ranks(), [(0, self.uuids[0], "cuda"), (1, self.uuids[1], "cuda")])
        for rank in (0, 1):
            row = attributes(path / f"model-rank-{rank}-part-0.safetensors")
            self.assertEqual((row["rank"], row["device_uuid"]), (str(rank).encode(), self.uuids[rank].encode()))
        done = self.node.run("fingerprint", model, "--tensor-parallel-size", 2)
        self.assertEqual(done.stdout.splitlines()[0], fingerprint)

    def test_where_route_says_a_draft_would_be(self):
        def socket(**environment):
            before = dict(self.node.environment)
            self.node.environment.update(environment)
            routed = json.loads(self.node.run("route", self.model, "--speculative-config", MTP, "--json").stdout)
            self.node.environment = before
            self.assertEqual(routed["state"], "not-running")
            return pathlib.Path(routed["socket"]).name.split("_")[2]
        self.assertEqual(socket(), self.uuids[0])
        self.assertEqual(socket(CUDA_VISIBLE_DEVICES="1"), self.uuids[1])
        self.assertEqual(socket(WCACHE_LIBCUDA="/nowhere/libcuda.so.1"), "HOST-0")

    def test_a_group_is_on_one_device_only(self):
        """Known by its fingerprint ahead, or found out when it is read."""
        first = self.node.preload(self.model, "--device", f"cuda:{self.uuids[0]}")
        first.ready()
        for cache in ("cache", "an-empty-cache"):
            with self.subTest(cache):
                self.node.environment["WCACHE_CACHE_DIR"] = str(self.node.root / cache)
                for device in (f"cuda:{self.uuids[1]}", "host"):
                    self.assert_fails(4, "FAILED target mismatch", "device", self.uuids[0], options=["--device", device])
                for options in ((), ("--device", "cuda"), ("--device", f"cuda:{self.uuids[0]}")):
                    again = self.node.preload(self.model, *options)
                    self.assertEqual(again.wait(), 0, again.errors)
                    self.assertEqual(again.output, first.output)
        self.assertEqual(self.ranks(), [(0, self.uuids[0], "cuda")])
        self.assertEqual(first.stop(), 0)
        self.assert_nothing_left()

    def test_a_group_is_shared_in_one_way_only(self):
        """Known by its fingerprint ahead, or found out when it is read."""
        for served, other, kind in (("vmm", "legacy", "cuda-vmm"), ("legacy", "vmm", "cuda-ipc")):
            first = self.node.preload(self.model, "--device", "cuda", "--ipc", served)
            first.ready()
            for cache in ("cache", "an-empty-cache"):
                with self.subTest(served + " " + cache):
                    self.node.environment["WCACHE_CACHE_DIR"] = str(self.node.root / cache)
                    self.assert_fails(4, "FAILED target mismatch: ipc", kind, options=["--device", "cuda", "--ipc", other])
                    for options in ((), ("--ipc", served)):
                        again = self.node.preload(self.model, "--device", "cuda", *options)
                        self.assertEqual(again.wait(), 0, again.errors)
            self.assertEqual(first.stop(), 0)
        self.assert_nothing_left(logs=True)

    def test_host_memory_is_shared_as_files_only(self):
        first = self.node.preload(self.model, "--device", "host")
        first.ready()
        self.assert_fails(4, "FAILED target mismatch: ipc", options=["--ipc", "vmm"])
        self.assertEqual(first.stop(), 0)

    def test_memory_limit_counts_what_is_on_the_device(self):
        self.assert_fails(7, "--memory-limit", options=["--device", "cuda", "--memory-limit", "1M"])

    def test_another_kind_of_sharing_is_refused_where_the_device_has_none(self):
        self.gpu.configure({"devices": 1, "attribute.103": 0})
        self.assert_fails(1, "--ipc legacy", options=["--device", "cuda", "--ipc", "vmm"])
        preload = self.node.preload(self.model)
        preload.ready()
        self.assertEqual(self.groups()["target"]["ranks"][0]["ipc_kind"], "cuda-ipc")
        self.assertEqual(preload.stop(), 0)

    def test_a_mig_instance(self):
        self.gpu.configure({"devices": 2, "device.1.mig_parent": self.uuids[2].removeprefix("GPU-")})
        (uuid,) = [device["uuid"] for device in self.devices() if device["mig"]]
        preload = self.node.preload(self.model, "--device", f"cuda:{uuid}")
        _, fingerprint, _ = preload.ready()
        self.assertEqual(self.ranks(), [(0, uuid, "cuda")])
        self.assertTrue(uuid.startswith("MIG-"))
        self.assert_fails(2, "whole UUID", options=["--device", f"cuda:{uuid[:8]}"])
        engine = self.engine(fingerprint)
        self.assertEqual(engine.answer(), digests_of(*self.model.glob("*.safetensors")))
        self.assertEqual(engine.stop(), 0)
        self.assertEqual(preload.stop(), 0)


@unittest.skipIf(REAL or not shutil.which("cc"), "a driver that hangs is compiled, and put in the place of the real one")
class Hang(CudaTest):
    """A library that never comes back from being loaded, but says that it was begun."""

    SOURCE = """
    #include <stdio.h>
    #include <unistd.h>
    __attribute__((constructor)) static void hang(void) {
      FILE* file = fopen(SAID, "w");
      fprintf(file, "%d", (int)getpid());
      fclose(file);
      for (;;) pause();
    }"""

    def test_a_signal_ends_the_wait(self):
        said, library = self.node.root / "said", self.node.root / "libhang.so"
        subprocess.run(["cc", "-shared", "-fPIC", f'-DSAID="{said}"', "-x", "c", "-", "-o", library], input=self.SOURCE,
                       text=True, check=True)
        self.node.environment["WCACHE_LIBCUDA"] = str(library)
        preload = self.node.preload(self.make("mimo", "--kind", "mimo"))
        pid = int(eventually(lambda: said.exists() and said.read_text(), "the driver is asked for"))
        self.assertEqual(preload.stop(signal.SIGINT), 128 + signal.SIGINT)
        self.assertFalse(pathlib.Path("/proc", str(pid)).exists())
        self.assertEqual(preload.output, b"")
        self.assert_nothing_left()


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class OneSmallDevice(CudaTest):
    config = {"devices": 1, "device.0.memory": 20 << 20}

    def test_two_groups_fit_and_a_third_does_not(self):
        models = [self.make(f"m{seed}", "--kind", "tiny", "--size", "8M", "--seed", seed) for seed in (1, 2, 3)]
        fits = [self.node.preload(model, "--device", "cuda") for model in models[:2]]
        for preload in fits:
            preload.ready()
        third = self.node.preload(models[2], "--device", "cuda")
        self.assertEqual(third.wait(), 7, third.errors)
        self.assertIn("over-budget", third.errors)
        self.assertIn(self.uuids[0], third.errors)
        self.assertEqual(fits[0].stop(), 0)
        again = self.node.preload(models[2], "--device", "cuda")
        again.ready()
        for preload in (fits[1], again):
            self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left(logs=True)


@unittest.skipIf(REAL, "the machine is set up by the fake driver")
class Doctor(CudaTest):
    config = {"devices": 2}

    def checks(self, **environment):
        self.node.environment.update(environment)
        done = self.node.run("doctor", "--json")
        self.assertEqual(done.returncode, 0, done.stdout)
        return [check for check in json.loads(done.stdout)["checks"] if check["name"] == "gpu"]

    def assert_one(self, grade, found, advice, **environment):
        (check,) = self.checks(**environment)
        self.assertEqual(check["grade"], grade)
        self.assertIn(found, check["found"])
        self.assertIn(advice, check.get("advice", ""))

    def assert_device(self, config, found, advice):
        self.gpu.configure({"devices": 1, **config})
        driver, device = self.checks()
        self.assertEqual((driver["grade"], device["grade"]), ("ok", "lacking"))
        self.assertIn(found, device["found"])
        self.assertIn(advice, device["advice"])

    def test_devices_are_listed(self):
        driver, *devices = self.checks()
        self.assertIn("CUDA 13.0 with 2 devices", driver["found"])
        self.assertEqual([device["grade"] for device in devices], ["ok", "ok"])
        for uuid, device in zip(self.uuids, devices):
            self.assertIn(uuid, device["found"])
            self.assertIn("1.0 GiB", device["found"])
        self.assertEqual(self.gpu.contexts(), [])

    def test_no_driver(self):
        self.assert_one("ok", "host memory", "", WCACHE_LIBCUDA="/nowhere/libcuda.so.1")

    @unittest.skipUnless(STUB.exists(), "there is no CUDA toolkit")
    def test_the_toolkits_stub(self):
        self.assert_one("lacking", "stub", "libcuda.so.1", WCACHE_LIBCUDA=str(STUB))

    def test_a_driver_that_cannot_be_used(self):
        for config, found, advice in [({"driver_version": 11030}, "too old: ", "11.4"),
                                      ({"init_error": 999}, "starting the CUDA driver", "nvidia-smi"),
                                      ({"init_error": 100}, "sees no device", "CUDA_VISIBLE_DEVICES"),
                                      ({"init_error": 34}, "stub", "libcuda.so.1")]:
            with self.subTest(found):
                self.gpu.configure(config)
                self.assert_one("lacking", found, advice)

    def test_a_device_that_is_not_for_everyone(self):
        self.assert_device({"attribute.20": 3}, "exclusive-process", "-c DEFAULT")
        self.assert_device({"attribute.20": 2}, "prohibited", "-c DEFAULT")
        self.assert_device({"attribute.103": 0}, "--ipc legacy", "daemon ends")


if __name__ == "__main__":
    cuda_harness.main()
