#!/usr/bin/env python3
"""An engine of its own process that reads an entry by the Python package, told line by line what to do.

    engine.py PACKAGE-DIRECTORY RUN-DIR ENTRY

Each line of standard input is one command; its answer is one line of JSON: {"result"} or {"error": {"reason", "message",
"hint"}}.
"""

import ctypes
import gc
import hashlib
import json
import pathlib
import sys

sys.path.insert(0, sys.argv[1])
import wcache  # noqa: E402
from wcache import _dlpack  # noqa: E402


def digest(data):
    return hashlib.sha256(data).hexdigest()


class Engine:
    def __init__(self, run_dir, entry):
        self.run_dir, self.entry, self.model = run_dir, entry, None

    def open(self, framework="numpy"):
        self.model = wcache.open(self.entry, run_dir=self.run_dir, framework=framework)
        return {field: getattr(self.model, field) for field in
                ("role", "fingerprint", "ranks", "tier", "ipc_kind", "device_uuid", "survives")}

    def close(self):
        self.model = None
        gc.collect()

    def arrays(self):
        """name -> (type, shape, digest of the bytes) of what numpy is given."""
        return {name: (str(self.model[name].dtype), self.model[name].shape, digest(self.model[name].tobytes()))
                for name in self.model}

    def names(self):
        """Whatever can be said without a device."""
        infos = {name: vars(self.model.info(name)) for name in self.model}
        assert len(self.model) == len(infos) and all(name in self.model for name in infos) and "no such" not in self.model
        return infos

    def infos(self):
        return {name: {**vars(self.model.info(name)), **vars(self.model.where(name))} for name in self.model}

    def bytes(self):
        return {name: digest(self.model.bytes(name)) for name in self.model}

    def torch(self, name):
        return str(self.model[name])

    def tensors(self):
        """name -> (type, shape, device, address, digest of the bytes) of what torch is given."""
        import torch
        found = {}
        for name in self.model:
            tensor = self.model[name]
            raw = tensor.reshape(-1).view(torch.uint8).cpu().numpy().tobytes() if tensor.numel() else b""
            found[name] = (str(tensor.dtype), tuple(tensor.shape), str(tensor.device), tensor.data_ptr(), digest(raw))
        return found

    def capsules(self, version):
        """What a consumer of DLPack would read of each tensor."""
        return {name: self.capsule(self.model.dlpack(name), version) for name in self.model}

    @staticmethod
    def capsule(exporter, version):
        capsule = exporter.__dlpack__(stream=1, max_version=version and (version, 0))
        name, kind = ((b"dltensor_versioned", _dlpack.ManagedVersioned) if version else (b"dltensor", _dlpack.Managed))
        pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
            ("PyCapsule_GetPointer", ctypes.pythonapi))
        managed = kind.from_address(pointer_of(capsule, name))
        tensor = managed.dl_tensor
        return {"device": (tensor.device.device_type, tensor.device.device_id), "asked": exporter.__dlpack_device__(),
                "dtype": (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes), "data": tensor.data,
                "shape": tensor.shape[:tensor.ndim], "strides": tensor.strides[:tensor.ndim],
                "byte_offset": tensor.byte_offset, "flags": getattr(managed, "flags", None)}

    def redeem(self, path, attribute):
        """The size of the slab, and what the descriptor is."""
        import os
        descriptor, nbytes = wcache.redeem(os.getxattr(path, attribute).decode())
        try:
            return nbytes, os.get_inheritable(descriptor)
        finally:
            os.close(descriptor)


def answer(engine, words):
    try:
        return {"result": getattr(engine, words[0])(*words[1:])}
    except wcache.Error as error:
        return {"error": {"reason": error.reason, "message": error.message, "hint": error.hint}}


def main():
    engine = Engine(*sys.argv[2:])
    for line in sys.stdin:
        print(json.dumps(answer(engine, json.loads(line)), default=str), flush=True)
    engine.close()


if __name__ == "__main__":
    main()
