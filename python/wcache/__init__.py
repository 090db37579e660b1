"""The weights of an entry that a wcached on this node serves, mapped into this process.

    import wcache
    with wcache.open("/mnt/wcache/target/by-name/Qwen3-8B") as model:
        embedding = model["model.embed_tokens.weight"]

Nothing is copied, and nothing can be written: arrays are views of the memory that every process shares, in host memory
or, of an entry that is on a CUDA device, there.
"""

import collections.abc
import dataclasses
import importlib.util
import os
import typing

from ._errors import (Busy, Corrupt, Denied, Error, Evicted, Internal, Invalid, Io, Mismatch, NotFound, NotReady,
                      NotRunning, OverBudget, Stale, Timeout, Unsupported, Version)
from ._dlpack import Exporter, sweep
from ._library import DEVICE_TYPE_CPU, Handle, Tensor, library, redeem as _redeem, text
from ._views import FRAMEWORKS, device_of, dtype_of, exporter, name_of, shape_of

__version__ = text(library.wcache_version())

__all__ = [
    "Busy", "Corrupt", "Denied", "Error", "Evicted", "Internal", "Invalid", "Io", "Location", "Mismatch", "Model", "NotFound",
    "NotReady", "NotRunning", "OverBudget", "Stale", "TensorInfo", "Timeout", "Unsupported", "Version", "open", "redeem",
]


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What the tensor table says of a tensor. No device is asked for it."""

    name: str
    dtype_name: str  #: the format's own spelling: "BF16", "F8_E4M3"; "q4_1" for GGUF
    shape: tuple[int, ...]
    nbytes: int
    file: str  #: relative to the entry's directory
    offset: int  #: of the first byte in the file
    rank: int
    digest: str  #: of the bytes
    slab: int  #: of the rank's device memory; in host memory the number of the file
    slab_offset: int  #: of the first byte in the slab


@dataclasses.dataclass(frozen=True)
class Location:
    """Where a tensor is for this process."""

    address: int  #: on the device where there is one; 0 for an empty tensor
    device: str  #: "cpu", or "cuda:0": as CUDA and torch number devices in this process
    read_only: bool  #: False: nothing stops a write to device memory, which would spoil it for every process


def _info_of(tensor: Tensor) -> TensorInfo:
    return TensorInfo(name_of(tensor), dtype_of(tensor), shape_of(tensor), tensor.nbytes, text(tensor.file),
                      tensor.offset, tensor.rank, text(tensor.digest), tensor.slab, tensor.slab_offset)


def _location_of(tensor: Tensor) -> Location:
    kind, number = device_of(tensor)
    return Location(tensor.data or 0, "cpu" if kind == DEVICE_TYPE_CPU else f"cuda:{number}", bool(tensor.read_only))


class Model(collections.abc.Mapping[str, typing.Any]):
    """An attached entry: names of tensors -> arrays. Made by `open`.

    It holds the entry (`wcache evict` refuses) until it is closed and the last array made of it is gone. It may be used by
    several threads at once.
    """

    role: str  #: "target" or "draft0"
    name: str
    fingerprint: str
    layout: str
    source: str  #: the checkpoint it was made of
    nbytes: int  #: of all files
    ranks: int  #: how many are attached to
    tier: str  #: "host" or "cuda"; of several ranks this and the next two tell of the lowest
    ipc_kind: str  #: "file", "cuda-vmm" or "cuda-ipc"
    device_uuid: str
    survives: bool  #: whether arrays outlive the daemons; False: they break when one dies ("cuda-ipc")

    def __init__(self, handle: Handle, framework: str):
        self._handle: typing.Optional[Handle] = handle
        self._framework = FRAMEWORKS[framework]()
        info = handle.info()
        self.role, self.name, self.fingerprint = text(info.role), text(info.name), text(info.fingerprint)
        self.layout, self.source = text(info.layout), text(info.source)
        self.nbytes, self.ranks = info.nbytes, info.ranks
        self.tier, self.ipc_kind, self.device_uuid = text(info.tier), text(info.ipc_kind), text(info.device_uuid)
        self.survives = bool(info.survives)

    def _attached(self) -> Handle:
        if self._handle is None:
            raise Invalid("the model is closed")
        return self._handle

    def __getitem__(self, name: str) -> typing.Any:
        """A tensor as the framework's array: of the shared memory itself, but for numpy and a CUDA device, where it is a copy
        in host memory."""
        handle, framework = self._attached(), self._framework
        framework.prepare(self.tier == "cuda")
        return framework.array(handle, handle.find(name))

    def __len__(self) -> int:
        return self._attached().count()

    def __iter__(self) -> typing.Iterator[str]:
        handle = self._attached()
        return (name_of(handle.describe(number)) for number in range(handle.count()))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and self._attached().number(name) >= 0
        except NotFound:
            return False

    def info(self, name: str) -> TensorInfo:
        """What the tensor table says. As for names, `in` and `len`, no device is needed for it."""
        handle = self._attached()
        return _info_of(handle.describe(handle.number(name)))

    def where(self, name: str) -> Location:
        """Where the tensor is, which maps its memory."""
        return _location_of(self._attached().find(name))

    def bytes(self, name: str) -> memoryview:
        """The bytes, read-only; needs no framework. Of an entry on a CUDA device a copy, else the memory itself."""
        handle = self._attached()
        return handle.memory(handle.find(name))

    def dlpack(self, name: str) -> Exporter:
        """The tensor for any framework that takes DLPack, in its own type where DLPack has it, else as bytes:
        `framework.from_dlpack(model.dlpack(name))`. It keeps the entry attached."""
        handle = self._attached()
        return exporter(handle, handle.find(name))

    def close(self) -> None:
        """Lets the entry go. Arrays made before stay valid, and hold it as long as they live."""
        self._handle = None
        self._framework = type(self._framework)()
        sweep()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<wcache.Model {self.role}/{self.fingerprint} {self.name}>"


def _default_framework() -> str:
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def open(entry: typing.Union[str, os.PathLike], *, framework: typing.Optional[str] = None,
         run_dir: typing.Union[str, os.PathLike, None] = None, role: typing.Optional[str] = None,
         rank: typing.Optional[int] = None, wait: float = 0) -> Model:
    """Attaches to an entry: a path in the mounted tree, a fingerprint or at least 8 first digits of one, a name as in
    by-name/, or the directory of a model whose fingerprint is remembered.

    framework: "torch" or "numpy"; None: torch where it is installed, else numpy. Types that the framework has not (BF16
        and FP8 in numpy, types of less than a byte, GGUF's blocks) come as uint8 with the last dimension counted in bytes;
        info(name).dtype_name tells the type. torch knows no read-only tensors: writing to one in host memory ends the
        process, on a device it is an error of CUDA's. A tensor that is not aligned in its file is copied for torch, with a
        warning. Of an entry on a CUDA device torch has views of the device's memory, and numpy copies of it in host memory,
        made anew each time: for looking at it. A torch without CUDA cannot have such an entry: Unsupported.
    run_dir: where the daemons meet; None: as the programs decide.
    role: "target" or "draft0", where both have such an entry.
    rank: one rank alone; None: all of this node, or, where each holds all of the entry on a device of its own, the lowest.
    wait: seconds to wait for an entry that is not there or still fills.
    """
    if framework not in (None, *FRAMEWORKS):
        raise Invalid(f"unknown framework {framework!r}", "it is numpy or torch")
    return Model(Handle(entry, run_dir, role, rank, wait), framework or _default_framework())


def redeem(ipc_handle: str) -> tuple[int, int]:
    """The text of an ipc_handle attribute of kind cuda-vmm as a descriptor of the slab, which the caller closes, and the
    slab's size: for cuMemImportFromShareableHandle."""
    return _redeem(ipc_handle)
