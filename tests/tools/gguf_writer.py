"""Writes GGUF version 3 files with the standard library alone."""

import math
import struct
from typing import NamedTuple

# ggml type -> (number in the file, elements of a block, bytes of a block).
GGML_TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q8_0": (8, 32, 34),
    "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "I8": (24, 1, 1), "I32": (26, 1, 4), "BF16": (30, 1, 2),
}
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY, _UINT64 = 4, 6, 7, 8, 9, 10


class Tensor(NamedTuple):
    """`dims` are in ggml's order, the fastest first; `data` is the tensor's bytes."""

    name: str
    type: str
    dims: tuple
    data: bytes


def nbytes(ggml_type, dims):
    _, block, size = GGML_TYPES[ggml_type]
    if dims[0] % block:
        raise ValueError(f"{ggml_type} rows of {dims[0]} elements are not whole blocks of {block}")
    return math.prod(dims) // block * size


def _string(text):
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value):
    if isinstance(value, bool):
        return _BOOL, struct.pack("<?", value)
    if isinstance(value, int):
        return (_UINT32, struct.pack("<I", value)) if value < 1 << 32 else (_UINT64, struct.pack("<Q", value))
    if isinstance(value, float):
        return _FLOAT32, struct.pack("<f", value)
    if isinstance(value, str):
        return _STRING, _string(value)
    kinds, bodies = zip(*map(_value, value))
    if len(set(kinds)) != 1:
        raise ValueError("a GGUF array holds one type")
    return _ARRAY, struct.pack("<IQ", kinds[0], len(bodies)) + b"".join(bodies)


def write(path, tensors, metadata, alignment=32):
    """Writes one file; `metadata` maps keys to str, bool, int, float or a list of one of them."""
    metadata = {**metadata, "general.alignment": alignment}
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        kind, body = _value(value)
        head += _string(key) + struct.pack("<I", kind) + body
    offset = 0
    for t in tensors:
        if len(t.data) != nbytes(t.type, t.dims):
            raise ValueError(f"{t.name}: {len(t.data)} bytes for {t.type} {list(t.dims)}")
        head += _string(t.name) + struct.pack(f"<I{len(t.dims)}Q", len(t.dims), *t.dims)
        head += struct.pack("<IQ", GGML_TYPES[t.type][0], offset)
        offset += len(t.data) + -len(t.data) % alignment
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % alignment))
        for t in tensors:
            out.write(t.data + bytes(-len(t.data) % alignment))
