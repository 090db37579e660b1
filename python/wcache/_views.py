"""Tensors of an entry as arrays of a framework. Private."""

import ctypes
import math
import threading
import typing
import warnings

from . import _dlpack
from ._errors import Unsupported
from ._library import DEVICE_TYPE_CPU, Handle, Tensor, text

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}
_TORCH = {
    **_NUMPY,
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}


def dtype_of(tensor: Tensor) -> str:
    return text(tensor.dtype)


def shape_of(tensor: Tensor) -> typing.Tuple[int, ...]:
    return tuple(tensor.shape[:tensor.ndim])


def name_of(tensor: Tensor) -> str:
    return text(ctypes.string_at(tensor.name, tensor.name_nbytes))


def device_of(tensor: Tensor) -> typing.Tuple[int, int]:
    """As DLPack has it."""
    return (DEVICE_TYPE_CPU, 0) if tensor.device_type == DEVICE_TYPE_CPU else (tensor.device_type, tensor.device)


def _byte_shape(tensor: Tensor) -> typing.Tuple[int, ...]:
    """The shape with its last dimension counted in bytes; flat where rows are no whole number of bytes."""
    shape = shape_of(tensor)
    rows = math.prod(shape[:-1])
    return (*shape[:-1], tensor.nbytes // rows) if rows and tensor.nbytes % rows == 0 else (tensor.nbytes,)


def _fits(tensor: Tensor, itemsize: int) -> bool:
    return math.prod(shape_of(tensor)) * itemsize == tensor.nbytes


def exporter(handle: Handle, tensor: Tensor) -> _dlpack.Exporter:
    dtype = _dlpack.DTYPES.get(dtype_of(tensor).upper())
    shape = shape_of(tensor)
    if dtype is None or not _fits(tensor, dtype[1] // 8):
        dtype, shape = _dlpack.BYTE, _byte_shape(tensor)
    return _dlpack.Exporter(tensor.data or 0, shape, dtype, device_of(tensor), handle, bool(tensor.read_only))


class Framework:
    """How tensors are given. One object a model."""

    def prepare(self, on_device: bool) -> None:
        """Called before a tensor is looked up, which may map its memory."""

    def array(self, handle: Handle, tensor: Tensor) -> typing.Any:
        raise NotImplementedError


class Numpy(Framework):
    """Views of host memory; copies of what is on a device."""

    def array(self, handle: Handle, tensor: Tensor) -> typing.Any:
        import numpy
        name = _NUMPY.get(dtype_of(tensor).upper())
        dtype = None if name is None else numpy.dtype(name)
        if dtype is None or not _fits(tensor, dtype.itemsize):
            dtype, shape = numpy.dtype("uint8"), _byte_shape(tensor)
        else:
            shape = shape_of(tensor)
        array = numpy.ndarray(shape, dtype, buffer=handle.memory(tensor))
        array.flags.writeable = False
        return array


class Torch(Framework):
    """Views of the memory itself, wherever it is: of one tensor of bytes for each file or slab, since that is what every
    torch takes by DLPack, each tensor is a piece in its own type and shape."""

    def __init__(self) -> None:
        self._bases: typing.Dict[int, typing.Any] = {}
        self._lock = threading.RLock()  # what the garbage collector ends in between may ask for a tensor

    def prepare(self, on_device: bool) -> None:
        """torch makes the device's context as it wants it."""
        if not on_device:
            return
        import torch
        if not torch.cuda.is_available():
            raise Unsupported("the entry is on a CUDA device, and this torch has none",
                              'framework="numpy" gives copies in host memory')
        torch.cuda.init()

    def _base(self, handle: Handle, tensor: Tensor) -> typing.Any:
        from torch.utils import dlpack
        with self._lock:
            base = self._bases.get(tensor.base)
            if base is None:
                base = dlpack.from_dlpack(_dlpack.capsule(tensor.base, (tensor.base_nbytes,), _dlpack.BYTE,
                                                          device_of(tensor), handle))
                self._bases[tensor.base] = base
            return base

    def array(self, handle: Handle, tensor: Tensor) -> typing.Any:
        import torch
        name = _TORCH.get(dtype_of(tensor).upper())
        dtype = None if name is None else getattr(torch, name, None)
        if dtype is None or not _fits(tensor, dtype.itemsize):
            dtype, shape = torch.uint8, _byte_shape(tensor)
        else:
            shape = shape_of(tensor)
        if tensor.nbytes == 0:
            kind, number = device_of(tensor)
            return torch.empty(shape, dtype=dtype, device="cpu" if kind == DEVICE_TYPE_CPU else f"cuda:{number}")
        at = tensor.data - tensor.base
        piece = self._base(handle, tensor)[at:at + tensor.nbytes]
        if at % dtype.itemsize != 0:
            warnings.warn(f"{name_of(tensor)} is not aligned in {text(tensor.file)}: copied", stacklevel=3)
            piece = piece.clone()
        return piece.view(dtype).reshape(shape)


FRAMEWORKS: typing.Dict[str, typing.Type[Framework]] = {"numpy": Numpy, "torch": Torch}
