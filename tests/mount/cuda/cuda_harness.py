"""What the tests of the CUDA tier share: a node whose devices are those of the fake driver (tests/fake_cuda), or, with
WCACHE_TEST_GPU=real, the machine's own. Tests that set the machine up or look into it need the fake."""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(SOURCE / "tests" / "mount" / "commands"), str(SOURCE / "tests" / "fake_cuda")]
import harness  # noqa: E402
from fake_gpu import FakeGpu  # noqa: E402
from harness import BIN, WAIT, NodeTest, bytes_of, eventually, make_checkpoint  # noqa: E402,F401

REAL = os.environ.get("WCACHE_TEST_GPU") == "real"
FAKE_LIBRARY = BIN.parent / "tests" / "libwcache_fake_cuda.so"
MTP = json.dumps({"method": "mtp", "num_speculative_tokens": 1})

needs_fake = unittest.skipIf(REAL, "this needs the fake driver")


def digests_of(*files):
    """name -> SHA-256 of each tensor, as engine.py says them."""
    return {name: hashlib.sha256(data).hexdigest() for file in files for name, data in bytes_of(file).items()}


def attributes(path, prefix="user.wcache."):
    return {name.removeprefix(prefix): os.getxattr(path, name) for name in os.listxattr(path) if name.startswith(prefix)}


class Engine:
    """A process that attaches to an entry through libwcache and says what is in it: engine.py."""

    def __init__(self, node, entry, *options):
        self.process = subprocess.Popen(
            [sys.executable, pathlib.Path(__file__).with_name("engine.py"), entry, node.run_dir, *map(str, options)],
            env=dict(node.environment, WCACHE_BIN_DIR=str(BIN)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the engine ended with {self.process.wait()}"
        return json.loads(line)

    def ask(self, word):
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        """Ends it, whatever it is doing."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def stop(self):
        self.process.stdin.close()
        code = self.process.wait(timeout=WAIT)
        self.process.stdout.close()
        return code


def ask_devices(environment):
    done = subprocess.run([BIN / "wcached", "--devices"], env=environment, capture_output=True, text=True, check=True,
                          timeout=WAIT)
    return json.loads(done.stdout)


def use_real_driver(environment):
    """In place of none, which a node has otherwise."""
    del environment["WCACHE_LIBCUDA"]
    environment.update({name: os.environ[name] for name in ("WCACHE_LIBCUDA",) if name in os.environ})


def main():
    """harness.main, with 77 where the real driver is meant and there is none."""
    if REAL and "devices" not in (report := ask_devices(os.environ)):
        print("skipped:", report["error"]["message"])
        sys.exit(77)
    harness.main()


class CudaTest(NodeTest):
    """A test with a node that has devices, of which nothing may be left in use in the end."""

    config = {"devices": 2}

    @classmethod
    def setUpClass(cls):
        cls.models = pathlib.Path(tempfile.mkdtemp(prefix="wcc-"))
        cls.addClassCleanup(shutil.rmtree, cls.models, ignore_errors=True)
        cls.made = {}

    @classmethod
    def make(cls, name, *options):
        """A checkpoint, made once for the class."""
        if name not in cls.made:
            cls.made[name] = make_checkpoint(cls.models / name, *options)
        return cls.made[name]

    def setUp(self):
        super().setUp()
        self.gpu = None
        if REAL:
            use_real_driver(self.node.environment)
        else:
            self.gpu = FakeGpu(str(FAKE_LIBRARY), self.config)
            self.addCleanup(self.gpu.close)
            self.set_environment(self.gpu.environment())
            self.addCleanup(self.assert_nothing_in_use)  # before the directory goes, after everything has ended
            self.addCleanup(self.node.clean_up)
        self.uuids = [device["uuid"] for device in self.devices()]

    def set_environment(self, environment):
        for name in ("WCACHE_LIBCUDA", "WCACHE_FAKE_CUDA_DIR", "WCACHE_FAKE_CUDA_FAIL"):
            self.node.environment[name] = environment[name]

    def assert_nothing_in_use(self):
        self.assertEqual(self.gpu.errors(), "")
        for device in range(int(self.gpu_config().get("devices", 1))):
            eventually(lambda: self.gpu.used_bytes(device) == 0, lambda: f"device {device}: {self.gpu.used_bytes(device)}", 10)
        self.assertEqual(self.gpu.contexts(), [])

    def gpu_config(self):
        return dict(line.split("=", 1) for line in (self.gpu.directory / "config").read_text().splitlines())

    def devices(self):
        report = ask_devices(self.node.environment)
        self.assertIn("devices", report, report)
        return report["devices"]

    def engine(self, entry, *options):
        engine = Engine(self.node, entry, *options)
        self.addCleanup(engine.close)
        return engine

    def groups(self):
        return {group["role"]: group for group in self.node.status()["groups"]}

    def daemon_of(self, role="target", rank=0):
        pids = [pid for pid, line in self.node.processes() if f"--role {role} --rank {rank} " in line]
        assert len(pids) == 1, self.node.processes()
        return pids[0]
