"""Bytes of a tensor as an array of a framework. Private."""

import math
import warnings

_NUMPY = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64",
}
_TORCH = _NUMPY | {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}


def _byte_shape(info):
    """The shape with its last dimension counted in bytes; flat where rows are no whole number of bytes."""
    rows = math.prod(info.shape[:-1])
    return (*info.shape[:-1], info.nbytes // rows) if rows and info.nbytes % rows == 0 else (info.nbytes,)


def _shape_for(info, itemsize):
    return info.shape if math.prod(info.shape) * itemsize == info.nbytes else None


def to_numpy(memory, info):
    import numpy
    name = _NUMPY.get(info.dtype_name.upper())
    dtype = None if name is None else numpy.dtype(name)
    shape = None if dtype is None else _shape_for(info, dtype.itemsize)
    if shape is None:
        dtype, shape = numpy.dtype("uint8"), _byte_shape(info)
    array = numpy.ndarray(shape, dtype, buffer=memory)
    array.flags.writeable = False
    return array


def to_torch(memory, info):
    import torch
    name = _TORCH.get(info.dtype_name.upper())
    dtype = None if name is None else getattr(torch, name, None)
    shape = None if dtype is None else _shape_for(info, dtype.itemsize)
    if shape is None:
        dtype, shape = torch.uint8, _byte_shape(info)
    if info.nbytes == 0:
        return torch.empty(shape, dtype=dtype)
    if info.address % dtype.itemsize != 0:
        warnings.warn(f"{info.name} is not aligned in {info.file}: copied", stacklevel=3)
        memory = bytearray(memory)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.frombuffer(memory, dtype=dtype).reshape(shape)


VIEWS = {"numpy": to_numpy, "torch": to_torch}
