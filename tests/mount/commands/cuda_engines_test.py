#!/usr/bin/env python3
"""Engines and entries on a device, with real daemons: each engine is a process. The device is one of a fake machine
(tests/fake_cuda), or, with WCACHE_TEST_GPU=real, the first of this one; tests that look into the driver need the fake."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

import harness
from harness import SharedModel, eventually, needs, tensors_of_all
from python_test import use_engines_python

sys.path[:0] = [str(harness.SOURCE / "tests" / part) for part in ("fake_cuda", "mount/cuda")]
import cuda_harness  # noqa: E402
import fake_gpu  # noqa: E402
from cuda_harness import REAL, needs_fake  # noqa: E402

BUILD = harness.BIN.parent
ENGINE = pathlib.Path(__file__).with_name("engine.py")
UUIDS = ["GPU-" + fake_gpu.FakeGpu.default_uuid(device) for device in range(2)]

# DLPack's code and bits of what DLPack has a type for.
DLPACK = {"BOOL": (6, 8), "U8": (1, 8), "I8": (0, 8), "U16": (1, 16), "I16": (0, 16), "U32": (1, 32), "I32": (0, 32),
          "U64": (1, 64), "I64": (0, 64), "F16": (2, 16), "F32": (2, 32), "F64": (2, 64), "BF16": (4, 16), "C64": (5, 64),
          "F8_E4M3": (10, 8), "F8_E5M2": (12, 8), "F8_E8M0": (14, 8)}
NUMPY = {"BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
         "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}


class Failure(Exception):
    """What an engine answered instead of a result: {"reason", "message", "hint"}."""


class Engine:
    """engine.py, told what to do by calls: engine("open"), engine("bytes")."""

    def __init__(self, node, entry, environment, prefix=()):
        """`prefix`: words before the command, of a program that becomes it."""
        command = [*prefix, sys.executable, ENGINE, BUILD / "python", node.run_dir, entry]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def ask(self, *words):
        print(json.dumps(words), file=self.process.stdin, flush=True)

    def answer(self):
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Failure(answer["error"])
        return answer["result"]

    def __call__(self, *words):
        self.ask(*words)
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait(harness.WAIT)
        self.process.stdout.close()


class OnDevice(SharedModel):
    """A machine with devices, two where it is fake, the model on the first of them."""

    ipc = "vmm"
    mounted = False

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.expected = tensors_of_all(cls.model)

    def setUp(self):
        super().setUp()
        if REAL:
            cuda_harness.use_real_driver(self.node.environment)
            self.uuid = cuda_harness.ask_devices(self.node.environment)["devices"][0]["uuid"]
        else:
            self.gpu = fake_gpu.FakeGpu(str(cuda_harness.FAKE_LIBRARY), {"devices": 2, "granularity": 1 << 16})
            self.addCleanup(self.gpu.close)
            self.node.environment.update(self.gpu.environment())
            self.uuid = UUIDS[0]
        self.engines = []
        self.addCleanup(lambda: [engine.end() for engine in self.engines])
        self.serve()

    def serve(self):
        self.preload = self.node.preload(self.model, "--device", f"cuda:{self.uuid}", "--ipc", self.ipc, mount=self.mounted)
        _, self.fingerprint, self.path = self.preload.ready()

    def engine(self, entry=None, prefix=(), **environment):
        self.engines.append(Engine(self.node, entry or self.fingerprint, {**self.node.environment, **environment}, prefix))
        return self.engines[-1]

    def failure_of(self, engine, *words):
        with self.assertRaises(Failure) as caught:
            engine(*words)
        return caught.exception.args[0]

    def assert_same(self, digests):
        self.assertEqual(digests, {name: hashlib.sha256(data).hexdigest() for name, (_, _, data) in self.expected.items()})

    def assert_nothing_kept(self, engine):
        engine("close")
        if not REAL:
            self.assertEqual(self.gpu.leaks(engine.pid), {})

    def kill_daemon(self):
        """As the kernel kills it; its launcher notes it."""
        (rank,) = self.node.group()["ranks"]
        os.kill(rank["pid"], signal.SIGKILL)
        eventually(lambda: self.node.group()["state"] == "orphaned", self.node.status)


class Vmm(OnDevice):
    def test_several_engines_at_once(self):
        engines = [self.engine(entry) for entry in (self.fingerprint, self.fingerprint[:8], self.model.name, self.fingerprint)]
        for engine in engines:
            engine.ask("open")
        for engine in engines:
            self.assertEqual(engine.answer(), {
                "role": "target", "fingerprint": self.fingerprint, "ranks": 1, "tier": "cuda",
                "ipc_kind": "cuda-" + ("vmm" if self.ipc == "vmm" else "ipc"), "device_uuid": self.uuid,
                "survives": self.ipc == "vmm"})
        self.assertLessEqual({engine.pid for engine in engines}, {h["pid"] for h in self.node.group()["holders"]})
        for engine in engines:
            engine.ask("bytes")
        for engine in engines:
            self.assert_same(engine.answer())
        used = None if REAL else self.gpu.used_bytes(0)
        for engine in engines:
            self.assert_nothing_kept(engine)
        if not REAL:
            self.assertEqual(self.gpu.used_bytes(0), used)  # one copy, however many read it

    def test_where_tensors_are(self):
        engine = self.engine()
        engine("open")
        infos = engine("infos")
        slabs = {info["slab"] for info in infos.values()}
        if not REAL:
            calls = self.gpu.counters(engine.pid)
            self.assertEqual(calls["calls.cuMemMap" if self.ipc == "vmm" else "calls.cuIpcOpenMemHandle_v2"], len(slabs))
        for name, (dtype, shape, data) in self.expected.items():
            info = infos[name]
            self.assertEqual((info["dtype_name"], tuple(info["shape"]), info["nbytes"]), (dtype, shape, len(data)))
            self.assertEqual(info["device"], "cuda:0")
            if not REAL:  # drivers differ in it
                self.assertEqual(info["read_only"], self.ipc == "vmm")
            self.assertEqual(info["slab_offset"] % 256, 0)
        capsules = engine("capsules", 1)
        for name, (dtype, shape, _) in self.expected.items():
            self.assertEqual(capsules[name]["data"], infos[name]["address"])
            self.assertEqual(capsules[name]["flags"], 1 if infos[name]["read_only"] else 0)
        self.assert_nothing_kept(engine)

    @needs_fake
    def test_names_need_no_device(self):
        for environment in ({"WCACHE_LIBCUDA": "/no/libcuda.so.1"}, {"CUDA_VISIBLE_DEVICES": ""}):
            engine = self.engine(**environment)
            engine("open", "torch")
            infos = engine("names")
            self.assertEqual({name: (info["dtype_name"], tuple(info["shape"]), info["nbytes"]) for name, info in infos.items()},
                             {name: (dtype, shape, len(data)) for name, (dtype, shape, data) in self.expected.items()})
            self.assertEqual(self.gpu.counters(engine.pid), {})
            self.assertEqual(self.failure_of(engine, "infos")["reason"], "unsupported")

    @needs_fake
    def test_devices_in_another_order_and_hidden_ones(self):
        engine = self.engine(CUDA_VISIBLE_DEVICES="1,0")
        engine("open")
        self.assertEqual({info["device"] for info in engine("infos").values()}, {"cuda:1"})
        self.assert_same(engine("bytes"))
        for visible in ("1", UUIDS[1], ""):
            engine = self.engine(CUDA_VISIBLE_DEVICES=visible)
            engine("open")
            failure = self.failure_of(engine, "bytes")
            self.assertEqual(failure["reason"], "unsupported")
            self.assertIn(UUIDS[0], failure["message"])
            self.assertIn("CUDA_VISIBLE_DEVICES", failure["message"] + failure["hint"])

    @needs_fake
    def test_the_driver_refuses(self):
        """Each first call of the driver, in turn, in an engine of its own: typed, nothing kept, and the next works."""
        engine = self.engine()
        engine("open")
        engine("bytes")
        engine("close")
        giving_back = ("Release", "Unmap", "Unregister", "AddressFree", "Close", "Destroy", "Pop", "Synchronize", "GetError")
        calls = [name.removeprefix("calls.") for name, count in self.gpu.counters(engine.pid).items()
                 if name.startswith("calls.cu") and count and not any(word in name for word in giving_back)]
        self.assertGreater(len(calls), 10)
        for call in calls:
            with self.subTest(call=call):
                engine = self.engine(WCACHE_FAKE_CUDA_FAIL=f"{call}:1=2")
                engine("open")
                if call == "cuDriverGetVersion":  # a version that cannot be had is no old one
                    engine("bytes")
                else:
                    failure = self.failure_of(engine, "bytes")
                    self.assertEqual(failure["reason"], "unsupported" if call == "cuInit" else "over-budget", failure)
                self.assert_nothing_kept(engine)
                engine("open")
                self.assertEqual(len(engine("bytes")), len(self.expected))

    @needs("torch")
    def test_torch_without_cuda_says_what_to_do(self):
        import torch
        if torch.cuda.is_available():
            self.skipTest("this torch has CUDA")
        engine = self.engine()
        engine("open", "torch")
        failure = self.failure_of(engine, "torch", min(self.expected))
        self.assertEqual(failure["reason"], "unsupported")
        self.assertIn('framework="numpy"', failure["hint"])


class Legacy(Vmm):
    """The same by handles."""

    ipc = "legacy"

    @needs_fake
    def test_another_pid_namespace_is_named(self):
        apart = ["unshare", "--pid", "--fork", "--kill-child"]
        if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
            self.skipTest("no PID namespace can be made here")
        refused = {"WCACHE_FAKE_CUDA_FAIL": "cuIpcOpenMemHandle_v2:*=201"}  # as drivers say it, whatever the cause
        for prefix, reason, word in ((apart, "unsupported", "PID namespace"), ([], "not-running", "nothing is behind")):
            engine = self.engine(prefix=prefix, **refused)
            engine("open")
            failure = self.failure_of(engine, "bytes")
            self.assertEqual(failure["reason"], reason)
            self.assertIn(word, failure["message"])


@needs_fake  # granularity and what is mapped are the fake's
class NumbersOfSlabs(OnDevice):
    """One slab and more, filled by wcached and read by several engines at once."""

    def serve(self):
        self.expected_slabs = {"1G": 1, "6M": 2, "1200K": 8}

    def start_daemon(self, ipc, slab_size):
        daemon = subprocess.Popen(
            [harness.BIN / "wcached", "--model", self.model, "--run-dir", self.node.run_dir, "--device", f"cuda:{self.uuid}",
             "--ipc", ipc, "--slab-size", slab_size], env=self.node.environment, stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()) if daemon.poll() is None else None)
        eventually(lambda: [group["state"] for group in self.node.status()["groups"]] == ["ready"], self.node.status)
        self.fingerprint = self.node.group()["fingerprint"]
        return daemon

    def test_every_engine_maps_each_slab_once_and_reads_it_right(self):
        for ipc, mapping in (("vmm", "cuMemMap"), ("legacy", "cuIpcOpenMemHandle_v2")):
            for size, slabs in self.expected_slabs.items():
                with self.subTest(ipc=ipc, slabs=slabs):
                    daemon = self.start_daemon(ipc, size)
                    engines = [self.engine() for _ in range(3)]
                    for engine in engines:
                        engine("open")
                        engine.ask("bytes")
                    for engine in engines:
                        self.assert_same(engine.answer())
                        self.assertEqual(self.gpu.counters(engine.pid)["calls." + mapping], slabs)
                        self.assert_nothing_kept(engine)
                    daemon.send_signal(signal.SIGTERM)
                    self.assertEqual(daemon.wait(harness.WAIT), 0)
                    self.assertEqual(self.gpu.used_bytes(0), 0)


class VmmMounted(OnDevice):
    """What lives on with the mount when the daemon dies."""

    mounted = True

    def test_an_engine_outlives_the_daemon(self):
        engine = self.engine()
        engine("open")
        before = engine("bytes")
        late = self.engine()  # has attached, and maps nothing before the daemon dies
        late("open")
        self.kill_daemon()
        self.assertEqual(engine("bytes"), before)
        self.assert_same(late("bytes"))
        after = self.engine()
        self.assertEqual(after("open")["tier"], "cuda")
        self.assert_same(after("bytes"))
        self.assertIn(after.pid, {holder["pid"] for holder in self.node.group()["holders"]})
        for each in (engine, late, after):
            self.assert_nothing_kept(each)

    def test_the_attribute_of_a_handle_gives_a_descriptor(self):
        engine = self.engine()
        file = next(self.path.glob("*.safetensors"))
        names = [name for name in os.listxattr(file) if name.startswith("user.wcache.ipc_handle")]
        self.assertTrue(names)
        for name in names:
            nbytes, inherited = engine("redeem", str(file), name)
            self.assertGreater(nbytes, 0)
            self.assertFalse(inherited)
        self.kill_daemon()
        for name in names:
            self.assertGreater(engine("redeem", str(file), name)[0], 0)

    def test_a_path_names_the_entry(self):
        engine = self.engine(self.path)
        self.assertEqual(engine("open")["fingerprint"], self.fingerprint)
        self.assert_same(engine("bytes"))


class LegacyMounted(OnDevice):
    """What handles lead to goes with the daemon, and that is said."""

    ipc = "legacy"
    mounted = True

    def test_an_engine_is_told_that_the_daemon_died(self):
        engine = self.engine()
        engine("open")
        self.kill_daemon()
        self.assertEqual(self.failure_of(engine, "bytes")["reason"], "not-running")
        failure = self.failure_of(self.engine(), "open")
        self.assertEqual(failure["reason"], "not-running")
        self.assertIn("vmm", failure["hint"])

    def test_the_attribute_is_the_handle(self):
        file = next(self.path.glob("*.safetensors"))
        self.assertEqual(len(os.getxattr(file, "user.wcache.ipc_handle")), 64)


class EveryDtype(OnDevice):
    options = ("--kind", "dtypes")

    @needs("numpy")
    def test_numpy_has_copies(self):
        engine = self.engine()
        engine("open")
        arrays = engine("arrays")
        self.assert_same({name: digest for name, (_, _, digest) in arrays.items()})
        for name, (dtype, shape, _) in self.expected.items():
            kind, given, _ = arrays[name]
            if dtype in NUMPY:
                self.assertEqual((kind, tuple(given)), (NUMPY[dtype], shape), name)
            else:
                self.assertEqual(kind, "uint8", name)
        self.assert_nothing_kept(engine)

    def test_dlpack_has_the_memory(self):
        engine = self.engine()
        engine("open")
        infos, capsules = engine("infos"), engine("capsules", None)
        for name, (dtype, shape, data) in self.expected.items():
            capsule = capsules[name]
            code, bits = DLPACK.get(dtype, (1, 8))
            self.assertEqual((capsule["dtype"], capsule["device"], capsule["asked"]), ([code, bits, 1], [2, 0], [2, 0]), name)
            self.assertEqual((capsule["data"] or 0, capsule["byte_offset"]), (infos[name]["address"], 0))
            if dtype in DLPACK:
                self.assertEqual(tuple(capsule["shape"]), shape)
            size = bits // 8
            strides = list(capsule["strides"])
            for axis in reversed(range(len(strides))):
                self.assertEqual(strides[axis] * bits // 8, size, (name, axis))
                size *= capsule["shape"][axis]
            self.assertEqual(size, len(data), name)
        self.assert_nothing_kept(engine)


class Torch(OnDevice):
    """Of a real device: there is no torch for the fake one. Not run yet on a machine that has one."""

    options = ("--kind", "dtypes")

    @unittest.skipUnless(REAL, "this needs a device that torch can use")
    @needs("torch", "numpy")
    def test_views_of_the_device_are_the_checkpoint(self):
        import torch
        if not torch.cuda.is_available():
            self.skipTest("this torch has no CUDA")
        engine = self.engine()
        engine("open", "torch")
        infos = engine("infos")
        tensors = engine("tensors")
        self.assert_same({name: digest for name, (*_, digest) in tensors.items()})
        for name, (dtype, shape, data) in self.expected.items():
            kind, given, device, address, _ = tensors[name]
            self.assertEqual(device, "cuda:0")
            if data:
                self.assertEqual(address, infos[name]["address"], name)
            if kind != "torch.uint8":
                self.assertEqual(tuple(given), shape, (name, dtype))


class Example(OnDevice):
    def test_the_c_program_reads_the_device(self):
        program = self.node.root / "attach"
        subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", f"-I{harness.SOURCE / 'client'}",
                        harness.SOURCE / "examples" / "attach.c", f"-L{BUILD / 'lib'}", "-lwcache", "-o", program], check=True)
        running = [subprocess.Popen([program, self.fingerprint, self.node.run_dir], stdout=subprocess.PIPE, text=True,
                                    env={**self.node.environment, "LD_LIBRARY_PATH": str(BUILD / "lib")})
                   for _ in range(4)]
        for process in running:
            out, _ = process.communicate(timeout=harness.WAIT)
            self.assertEqual(process.returncode, 0)
            rows = [line.split() for line in out.splitlines()[1:]]
            self.assertEqual({row[0]: (row[1], int(row[2]), int(row[4]), row[5]) for row in rows},
                             {name: (dtype, len(data), sum(data), "cuda:0")
                              for name, (dtype, _, data) in self.expected.items()})


if __name__ == "__main__":
    use_engines_python()
    cuda_harness.main()
