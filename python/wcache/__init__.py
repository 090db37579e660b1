"""The weights of an entry that a wcached on this node serves, mapped into this process.

    import wcache
    with wcache.open("/mnt/wcache/target/by-name/Qwen3-8B") as model:
        embedding = model["model.embed_tokens.weight"]

Nothing is copied, and nothing can be written: arrays are views of the memory that every process shares.
"""

import importlib.util
import collections.abc
import ctypes
import dataclasses
import os
import typing

from ._errors import (Busy, Corrupt, Denied, Error, Evicted, Internal, Invalid, Io, Mismatch, NotFound, NotReady,
                      NotRunning, OverBudget, Stale, Timeout, Unsupported, Version)
from ._library import Handle, library, text
from ._views import VIEWS

__version__ = text(library.wcache_version())

__all__ = [
    "Busy", "Corrupt", "Denied", "Error", "Evicted", "Internal", "Invalid", "Io", "Mismatch", "Model", "NotFound",
    "NotReady", "NotRunning", "OverBudget", "Stale", "TensorInfo", "Timeout", "Unsupported", "Version", "open",
]


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """What the tensor table says of a tensor."""

    name: str
    dtype_name: str  #: the format's own spelling: "BF16", "F8_E4M3"; "q4_1" for GGUF
    shape: tuple[int, ...]
    nbytes: int
    file: str  #: relative to the entry's directory
    offset: int  #: of the first byte in the file
    rank: int
    digest: str  #: of the bytes
    address: int  #: in this process; 0 for an empty tensor


def _name_of(tensor) -> str:
    return text(ctypes.string_at(tensor.name, tensor.name_nbytes))


def _info_of(tensor) -> TensorInfo:
    return TensorInfo(_name_of(tensor), text(tensor.dtype), tuple(tensor.shape[:tensor.ndim]), tensor.nbytes,
                      text(tensor.file), tensor.offset, tensor.rank, text(tensor.digest), tensor.data or 0)


class Model(collections.abc.Mapping):
    """An attached entry: names of tensors -> arrays. Made by `open`.

    It holds the entry (`wcache evict` refuses) until it is closed and the last array made of it is gone.
    """

    def __init__(self, handle: Handle, framework: str):
        self._handle: typing.Optional[Handle] = handle
        self._view = VIEWS[framework]
        info = handle.info()
        self.role: str = text(info.role)
        self.name: str = text(info.name)
        self.fingerprint: str = text(info.fingerprint)
        self.layout: str = text(info.layout)
        self.source: str = text(info.source)  #: the checkpoint it was made of
        self.nbytes: int = info.nbytes  #: of all files
        self.ranks: int = info.ranks

    def _attached(self) -> Handle:
        if self._handle is None:
            raise Invalid("the model is closed")
        return self._handle

    def __getitem__(self, name: str):
        handle = self._attached()
        tensor = handle.find(name)
        return self._view(handle.memory(tensor), _info_of(tensor))

    def __len__(self) -> int:
        return self._attached().count()

    def __iter__(self) -> typing.Iterator[str]:
        handle = self._attached()
        return (_name_of(handle.at(number)) for number in range(handle.count()))

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._attached().find(name))
        except NotFound:
            return False

    def info(self, name: str) -> TensorInfo:
        """What the tensor table says, without making an array."""
        return _info_of(self._attached().find(name))

    def bytes(self, name: str) -> memoryview:
        """The bytes themselves, read-only; needs no framework."""
        handle = self._attached()
        return handle.memory(handle.find(name))

    def close(self) -> None:
        """Lets the entry go. Arrays made before stay valid, and hold it as long as they live."""
        self._handle = None

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_) -> None:
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

    framework: "torch" or "numpy"; None: torch where it is installed, else numpy. Types that the framework has not (BF16 and FP8 in numpy, types of less
        than a byte, GGUF's blocks) come as uint8 with the last dimension counted in bytes; info(name).dtype_name tells
        the type. torch knows no read-only tensors: writing to one ends the process. A tensor that is not aligned in its
        file is copied for torch, with a warning.
    run_dir: where the daemons meet; None: as the programs decide.
    role: "target" or "draft0", where both have such an entry.
    rank: one rank alone; None: all of this node.
    wait: seconds to wait for an entry that is not there or still fills.
    """
    if framework not in (None, *VIEWS):
        raise Invalid(f"unknown framework {framework!r}", "it is numpy or torch")
    return Model(Handle(entry, run_dir, role, rank, wait), framework or _default_framework())
