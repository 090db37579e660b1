#!/usr/bin/env python3
"""The Python package against real daemons: the tensors of a checkpoint, who holds it, and what is raised."""

import gc
import hashlib
import importlib.util
import json
import os
import pathlib
import struct
import sys
import threading
import unittest

import harness
from harness import NodeTest, SharedModel, eventually, needs, tensors_of_all

sys.path.insert(0, str(harness.BIN.parent / "python"))
import wcache  # noqa: E402


def has(module):
    return importlib.util.find_spec(module) is not None


class Python(SharedModel):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.expected = tensors_of_all(cls.model)

    def setUp(self):
        super().setUp()
        self.preload = self.node.preload(self.model)
        _, self.fingerprint, self.path = self.preload.ready()

    def open(self, entry=None, **options):
        return wcache.open(entry or self.path, run_dir=self.node.run_dir, **options)

    def holders(self):
        return [holder["pid"] for holder in self.node.group()["holders"]]

    def test_names_and_bytes(self):
        with self.open() as model:
            self.assertEqual(list(model), sorted(self.expected))
            self.assertEqual(len(model), len(self.expected))
            self.assertEqual((model.role, model.fingerprint, model.ranks), ("target", self.fingerprint, 1))
            self.assertEqual((model.tier, model.ipc_kind, model.device_uuid, model.survives), ("host", "file", "HOST-0", True))
            for name, (dtype, shape, data) in self.expected.items():
                info = model.info(name)
                self.assertEqual((info.name, info.dtype_name, info.shape, info.nbytes), (name, dtype, shape, len(data)))
                where = model.where(name)
                self.assertEqual((where.device, where.read_only, info.slab_offset), ("cpu", True, info.offset))
                found = model.bytes(name)
                self.assertTrue(found.readonly)
                self.assertEqual(hashlib.sha256(found).digest(), hashlib.sha256(data).digest(), name)
                self.assertIn(name, model)
            self.assertNotIn("no such tensor", model)

    def test_holds_the_entry_until_the_last_view_is_gone(self):
        model = self.open(self.fingerprint[:8])
        name = min(self.expected)
        view = model.bytes(name)
        self.assertIn(os.getpid(), self.holders())
        self.assertEqual(os.getxattr(self.path, "user.wcache.holders"), b"1")
        model.close()
        self.assertRaises(wcache.Invalid, model.info, name)
        self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 6)
        self.assertEqual(bytes(view), self.expected[name][2])
        del view
        gc.collect()
        # What status says of mappings may be half a second old.
        eventually(lambda: os.getpid() not in self.holders(), self.holders)
        self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 0)

    def test_what_is_raised(self):
        with self.open() as model:
            with self.assertRaises(wcache.NotFound) as caught:
                model["no such tensor"]
            self.assertIsInstance(caught.exception, KeyError)
            self.assertEqual(caught.exception.reason, "not-found")
            self.assertIn("'no such tensor'", str(caught.exception))
            self.assertIsNone(model.get("no such tensor"))
        self.assertRaises(wcache.NotFound, self.open, "other")
        self.assertRaises(wcache.Invalid, self.open, framework="fortran")
        self.assertRaises(wcache.Invalid, self.open, role="draft7")
        self.assertRaises(wcache.Timeout, self.open, "other", wait=0.05)
        self.preload.stop()
        self.assertEqual(self.node.run("evict", self.fingerprint).returncode, 3)
        self.assertRaises(wcache.NotRunning, self.open)

    @needs("numpy")
    def test_numpy_views_are_the_memory_itself(self):
        import numpy
        with self.open(framework="numpy") as model:
            for name, (dtype, shape, data) in self.expected.items():
                array = model[name]
                self.assertEqual(array.tobytes(), data, name)
                self.assertEqual(array.__array_interface__["data"], (model.where(name).address, True), name)
                self.assertFalse(array.flags.owndata)
                if dtype == "F32":
                    self.assertEqual((array.dtype, array.shape), (numpy.float32, shape))
                if dtype == "BF16":
                    self.assertEqual((array.dtype, array.shape), (numpy.uint8, (*shape[:-1], 2 * shape[-1])))
            self.assertRaises(ValueError, lambda: array.__setitem__(..., 0))

    @needs("numpy")
    def test_the_default_is_torch_where_it_is_installed(self):
        with self.open() as model:
            kind = type(model[min(self.expected)]).__module__
        self.assertEqual(kind.split(".")[0], "torch" if has("torch") else "numpy")

    @needs("torch")
    def test_torch_views_are_the_memory_itself(self):
        import torch
        with self.open(framework="torch") as model:
            for name, (dtype, shape, data) in self.expected.items():
                tensor = model[name]
                self.assertEqual(tensor.data_ptr(), model.where(name).address, name)
                self.assertEqual(bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist()), data, name)
                if dtype == "BF16":
                    self.assertEqual((tensor.dtype, tuple(tensor.shape)), (torch.bfloat16, shape))

    @needs("torch")
    def test_torch_is_told_of_each_file_once(self):
        import torch
        with self.open(framework="torch") as model:
            tensors = {name: model[name] for name in model}
            files = {model.info(name).file for name in model}
            storages = {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}
            self.assertEqual(len(storages), len(files))
            self.assertTrue(all(tensor.device == torch.device("cpu") for tensor in tensors.values()))
        self.assertIn(os.getpid(), self.holders())
        last = tensors.popitem()[1]
        tensors.clear()
        gc.collect()
        self.assertIn(os.getpid(), self.holders())
        self.assertGreaterEqual(last.numel(), 1)
        del last
        gc.collect()
        eventually(lambda: os.getpid() not in self.holders(), self.holders)

    @needs("torch")
    def test_many_threads(self):
        import torch
        def sums(model, out):
            out.append([int(model[name].reshape(-1).view(torch.uint8).sum()) for name in model])
        results = []
        with self.open(framework="torch") as model:
            threads = [threading.Thread(target=sums, args=(model, results)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertEqual(results, 8 * [[sum(self.expected[name][2]) for name in sorted(self.expected)]])

    @needs("torch", "numpy")
    def test_what_takes_dlpack(self):
        import numpy
        import torch
        with self.open() as model:
            for name, (dtype, shape, data) in self.expected.items():
                exporter = model.dlpack(name)
                self.assertEqual(exporter.__dlpack_device__(), (1, 0))
                tensor = torch.from_dlpack(exporter)
                self.assertEqual((tensor.data_ptr(), tuple(tensor.shape)), (model.where(name).address, shape), name)
                self.assertEqual(bytes(tensor.reshape(-1).view(torch.uint8).numpy()), data, name)
                if dtype == "F32":
                    array = numpy.from_dlpack(exporter)
                    self.assertEqual((array.dtype, array.tobytes()), (numpy.float32, data))
                    self.assertFalse(array.flags.writeable)

    @needs("numpy")
    def test_a_refused_capsule_is_let_go(self):
        import numpy
        model = self.open()
        name = next(name for name, (dtype, _, _) in self.expected.items() if dtype == "BF16")
        with self.assertRaises((BufferError, RuntimeError, TypeError)):  # and no SystemError
            numpy.from_dlpack(model.dlpack(name))
        kept = model.dlpack(name).__dlpack__()
        model.close()
        self.assertIn(os.getpid(), self.holders())
        del kept
        gc.collect()
        eventually(lambda: os.getpid() not in self.holders(), self.holders)


class EveryDtype(SharedModel):
    """Whole, empty and scalar tensors of every dtype of safetensors."""

    options = ("--kind", "dtypes")

    def setUp(self):
        super().setUp()
        self.preload = self.node.preload(self.model, mount=False)
        _, self.fingerprint, _ = self.preload.ready()
        self.expected = tensors_of_all(self.model)

    def check(self, framework, bytes_of):
        """What is given by name: its bytes, and its shape or that in bytes. The dtypes that had one of their own."""
        own = set()
        with wcache.open(self.fingerprint, run_dir=self.node.run_dir, framework=framework) as model:
            for name, (dtype, shape, data) in self.expected.items():
                given = model[name]
                self.assertEqual(bytes_of(given), data, name)
                if str(given.dtype).rpartition(".")[2] != "uint8":
                    own.add(dtype)
                    self.assertEqual(tuple(given.shape), shape, name)
                elif data:
                    self.assertEqual(tuple(given.shape[:-1]), shape[:-1] if given.ndim > 1 else (), name)
        return own

    @needs("numpy")
    def test_numpy(self):
        own = self.check("numpy", lambda array: array.tobytes())
        self.assertGreaterEqual(own, {"BOOL", "I8", "I16", "U16", "F16", "F32", "I64", "F64", "C64"})
        self.assertFalse(own & {"BF16", "F8_E4M3", "F4"})

    @needs("torch", "numpy")
    def test_torch(self):
        import torch
        own = self.check("torch", lambda tensor: tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
        self.assertGreaterEqual(own, {"BOOL", "I8", "I16", "BF16", "F16", "F32", "I64", "F8_E4M3", "F8_E5M2"})


class Misaligned(NodeTest):
    DATA = struct.pack("<3f", 1.5, -2, 1e9)

    def setUp(self):
        super().setUp()
        self.model = self.node.root / "odd"
        self.model.mkdir()
        header = json.dumps({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, len(self.DATA)]}}).encode()
        header += b" " * (1 + -len(header) % 8)
        (self.model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + self.DATA)
        (self.model / "config.json").write_text("{}")
        self.preload = self.node.preload(self.model, mount=False)
        self.preload.ready()

    def open(self, framework):
        return wcache.open("odd", run_dir=self.node.run_dir, framework=framework)

    @needs("numpy")
    def test_numpy_reads_it_in_place(self):
        with self.open("numpy") as model:
            self.assertEqual(model.where("x").address % 8, 1)
            self.assertEqual(model["x"].tobytes(), self.DATA)
            self.assertEqual(model["x"].__array_interface__["data"][0], model.where("x").address)

    @needs("torch")
    def test_torch_gets_a_copy_and_is_told(self):
        with self.open("torch") as model:
            with self.assertWarnsRegex(UserWarning, "x is not aligned in model.safetensors: copied"):
                tensor = model["x"]
            self.assertEqual(tensor.tolist(), list(struct.unpack("<3f", self.DATA)))
            self.assertNotEqual(tensor.data_ptr(), model.where("x").address)


def use_engines_python():
    """The frameworks are in the environment of the engine tests (tests/engines/setup), where it was made."""
    venv = os.environ.get("WCACHE_ENGINES_VENV") or harness.SOURCE / ".venv" / "engines"
    python = pathlib.Path(venv) / "bin" / "python"
    if not has("numpy") and python.exists() and pathlib.Path(sys.executable) != python:
        os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    use_engines_python()
    harness.main()
