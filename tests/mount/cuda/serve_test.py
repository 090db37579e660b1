#!/usr/bin/env python3
"""An entry on a device, from `wcache preload` to `wcache evict`: files, attributes, engines. Runs on the fake driver, and as
it is on a real one."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import cuda_harness
from cuda_harness import MTP, CudaTest, attributes, bytes_of, digests_of, eventually, needs_fake

sys.path.insert(0, str(cuda_harness.BIN.parent / "python"))
import wcache  # noqa: E402


def python_with_safetensors():
    """A Python that has safetensors: this one, or that of the engines' environment (tests/engines/setup)."""
    engines = os.environ.get("WCACHE_ENGINES_VENV", cuda_harness.SOURCE / ".venv" / "engines")
    for python in (sys.executable, pathlib.Path(engines) / "bin" / "python"):
        if shutil.which(python) and subprocess.run([python, "-c", "import safetensors, numpy"],
                                                   capture_output=True).returncode == 0:
            return python
    return None


# Loads the files of both directories, as engines do, and compares.
COMPARE = """
import sys
from safetensors.numpy import load_file
for path in sys.argv[3:]:
    one, other = (load_file(f"{directory}/{path}") for directory in sys.argv[1:3])
    assert one and one.keys() == other.keys()
    assert all(one[name].dtype == other[name].dtype and one[name].tobytes() == other[name].tobytes() for name in one)
"""


class Serve(CudaTest):
    ipc = "vmm"

    def setUp(self):
        super().setUp()
        self.model = self.make("mimo", "--kind", "mimo")

    def preload(self, model=None, *options, **where):
        return self.node.preload(model or self.model, "--device", "cuda", "--ipc", self.ipc, *options, **where)

    def weights(self, model=None):
        return sorted((model or self.model).glob("*.safetensors"))

    def test_a_checkpoint_with_its_draft(self):
        preload = self.preload(self.model, "--speculative-config", MTP)
        ready = preload.ready_groups(2)
        target, path = ready["target"]
        draft, draft_path = ready["draft0"]
        self.assertEqual((path, draft_path), (self.node.mount / "target" / target, self.node.mount / "draft0" / draft))
        self.assert_same_files(self.model, path)
        known = self.node.run("fingerprint", self.model)
        self.assertEqual(known.stdout.splitlines()[0], target, "where it is makes no difference")
        source = {}
        for file in self.weights():
            source.update(bytes_of(file))
        served = bytes_of(draft_path / "model.safetensors")
        self.assertIn("model.mtp_layers.0.input_proj.weight", served)
        for name, data in served.items():
            self.assertTrue(data == source[name], name)
        self.assertEqual(self.node.run("verify", target).returncode, 0)
        self.assertEqual(self.node.run("verify", draft).returncode, 0)
        self.assertEqual(preload.stop(), 0)
        self.assert_nothing_left()

    def test_every_dtype_and_every_name(self):
        for kind in ("dtypes", "names"):
            with self.subTest(kind):
                model = self.make(kind, "--kind", kind)
                preload = self.preload(model)
                _, fingerprint, path = preload.ready()
                self.assert_same_files(model, path)
                engine = self.engine(fingerprint)
                self.assertEqual(engine.answer(), digests_of(*self.weights(model)))
                self.assertEqual(engine.stop(), 0)
                self.assertEqual(self.node.run("verify", fingerprint).returncode, 0)
                self.assertEqual(preload.stop(), 0)

    def test_attributes(self):
        _, fingerprint, path = self.preload().ready()
        entry = attributes(path)
        self.assertEqual((entry["role"], entry["fingerprint"], entry["state"]), (b"target", fingerprint.encode(), b"ready"))
        self.assertEqual(int(entry["nbytes"]), sum(p.stat().st_size for p in self.model.rglob("*") if p.is_file()))
        file = attributes(path / self.weights()[0].name)
        self.assertEqual((file["tier"], file["rank"], file["device_uuid"]), (b"cuda", b"0", self.uuids[0].encode()))
        self.assertEqual(int(file["nbytes"]), self.weights()[0].stat().st_size)
        self.assertGreaterEqual(int(file["ipc_size"]), int(file["nbytes"]))
        self.assert_handle(file)
        self.assertNotIn("ipc_handle", attributes(path / "config.json"))
        name = sorted(bytes_of(self.weights()[0]))[0]
        tensor = attributes(path / ".wcache" / "tensors" / name)
        for key in ("dtype", "shape", "nbytes", "digest", "rank", "file", "offset"):
            self.assertIn(key, tensor)
        self.assertEqual((tensor["device_uuid"], tensor["ipc_slab"]), (self.uuids[0].encode(), b"0"))
        self.assertEqual(int(tensor["ipc_offset"]) % 256, 0)
        self.assert_handle(tensor)

    def assert_handle(self, row):
        """vmm: the text names the socket; what it is redeemed for has the slab's bytes."""
        self.assertEqual(row["ipc_kind"], b"cuda-vmm")
        socket = self.groups()["target"]["ranks"][0]["socket"]
        self.assertEqual(row["ipc_handle"].decode(), f"slab=0 socket={socket}")

    @needs_fake
    def test_a_handle_leads_to_the_tensors(self):
        """The fake's device memory can be read through its descriptors."""
        _, _, path = self.preload().ready()
        for file in self.weights():
            for name, data in bytes_of(file).items():
                row = attributes(path / ".wcache" / "tensors" / name)
                fd, nbytes = wcache.redeem(row["ipc_handle"].decode())
                try:
                    self.assertLessEqual(int(row["ipc_offset"]) + len(data), nbytes)
                    self.assertTrue(os.pread(fd, len(data), int(row["ipc_offset"])) == data, name)
                finally:
                    os.close(fd)

    def test_engines_read_every_tensor_and_hold_the_entry(self):
        preload = self.preload()
        _, fingerprint, path = preload.ready()
        expected = digests_of(*self.weights())
        engines = [self.engine(entry) for entry in (fingerprint, path, self.model.name)]
        for engine in engines:
            self.assertEqual(engine.answer(), expected)
        self.assertEqual({holder["pid"] for holder in self.groups()["target"]["holders"]}, {e.pid for e in engines})
        self.assertEqual(os.getxattr(path, "user.wcache.holders"), b"3")
        done = self.node.run("evict", fingerprint)
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn(str(engines[0].pid), done.stderr)
        self.assertEqual(engines[0].ask("read"), expected)
        for engine in engines:
            self.assertEqual(engine.stop(), 0)
        eventually(lambda: not self.groups()["target"]["holders"], "nobody holds it")
        self.assertEqual(self.node.run("evict", fingerprint).returncode, 0)
        self.assertEqual(preload.wait(), 0)
        self.assert_nothing_left()

    def test_status(self):
        preload = self.preload()
        preload.ready()
        group = self.groups()["target"]
        self.assertEqual((group["state"], group["tp_size"]), ("ready", 1))
        (rank,) = group["ranks"]
        self.assertEqual((rank["device_uuid"], rank["tier"], rank["ipc_kind"], rank["survives"]),
                         (self.uuids[0], "cuda", *self.kind))
        self.assertIs(rank["cuda_context"], self.ipc == "legacy")
        if self.gpu:
            self.assertEqual([pid for _, pid in self.gpu.contexts()], [self.daemon_of()] if self.ipc == "legacy" else [])
        self.assertNotIn("pages", rank)
        self.assertEqual(pathlib.Path(rank["socket"]).name, f"wcache_{group['fingerprint'][:16]}_{self.uuids[0]}.sock")
        self.assertIn(f"{self.uuids[0]}, cuda, {self.kind[0]}", self.node.run("status").stdout)
        self.assertRegex(self.node.run("ls").stdout, re.escape(group["fingerprint"]))
        again = self.node.preload(self.model)
        self.assertEqual(again.wait(), 0, again.errors)
        self.assertEqual(again.output, preload.output)

    kind = ("cuda-vmm", True)

    @unittest.skipUnless(python_with_safetensors(), "no Python here has safetensors and numpy")
    def test_safetensors_loads_it_from_the_mount(self):
        _, _, path = self.preload().ready()
        done = subprocess.run([python_with_safetensors(), "-c", COMPARE, self.model, path,
                               *(file.name for file in self.weights())], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)


class ServeLegacy(Serve):
    ipc = "legacy"
    kind = ("cuda-ipc", False)
    test_a_handle_leads_to_the_tensors = None

    def assert_handle(self, row):
        self.assertEqual(row["ipc_kind"], b"cuda-ipc")
        self.assertEqual(len(row["ipc_handle"]), 64)


if __name__ == "__main__":
    cuda_harness.main()
