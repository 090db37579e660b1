"""Writes safetensors files with the standard library alone.

    import safetensors_writer as st
    st.write("model.safetensors", [st.Tensor("a", "BF16", (2, 3), bytes(12))])

The library's own layout is written by default: tensors by falling alignment, then by name, header padded with spaces
to a multiple of eight. `order="given"` and `pad=1` write what foreign writers do: tensors at any offset.
"""

import json
import math
import struct
from typing import Callable, NamedTuple, Union

# Every dtype string of the format, and its bits. Below eight bits a shape counts logical elements.
DTYPE_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "C64": 64, "I64": 64, "U64": 64, "F64": 64,
}


class Tensor(NamedTuple):
    """One tensor. `data` is its bytes, or a function without arguments that makes them when they are written."""

    name: str
    dtype: str
    shape: tuple
    data: Union[bytes, Callable[[], bytes]]

    @property
    def nbytes(self):
        return nbytes(self.dtype, self.shape)


def nbytes(dtype, shape):
    """Bytes of a tensor; ValueError where its bits do not fill whole bytes."""
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise ValueError(f"{dtype} {list(shape)}: {bits} bits are not whole bytes")
    return bits // 8


def library_order(tensors):
    """The order in which the safetensors library lays tensors out."""
    return sorted(tensors, key=lambda t: (-DTYPE_BITS[t.dtype], t.name))


def frame(header, data=b"", pad=8):
    """A file's bytes from its header, given as text, as bytes or as the object that becomes JSON."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    if isinstance(header, str):
        header = header.encode()
    header += b" " * (-len(header) % pad)
    return struct.pack("<Q", len(header)) + header + data


def header(tensors, metadata=None):
    """The header's object for tensors laid out one after the other in the order given."""
    out = {} if metadata is None else {"__metadata__": metadata}
    offset = 0
    for t in tensors:
        end = offset + t.nbytes
        out[t.name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": [offset, end]}
        offset = end
    return out


def write(path, tensors, metadata=None, order="library", pad=8):
    """Writes one file and returns the bytes of tensor data in it."""
    tensors = library_order(tensors) if order == "library" else list(tensors)
    total = 0
    with open(path, "wb", buffering=1 << 20) as out:
        out.write(frame(header(tensors, metadata), pad=pad))
        for t in tensors:
            data = t.data() if callable(t.data) else t.data
            if len(data) != t.nbytes:
                raise ValueError(f"{t.name}: {len(data)} bytes for {t.dtype} {list(t.shape)}")
            out.write(data)
            total += len(data)
    return total


def write_sharded(directory, tensors, shards, stem="model", metadata=None):
    """Writes `shards` files of about equal size and their index; one file without an index where shards is 1."""
    metadata = {"format": "pt"} if metadata is None else metadata
    if shards == 1:
        write(f"{directory}/{stem}.safetensors", tensors, metadata)
        return [f"{stem}.safetensors"]
    names = [f"{stem}-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    if len(tensors) < shards:
        raise ValueError(f"{len(tensors)} tensors do not fill {shards} shards")
    total = sum(t.nbytes for t in tensors)
    parts, current, seen = [[] for _ in names], 0, 0
    for i, t in enumerate(tensors):
        must_move = len(tensors) - i < shards - current
        if parts[current] and current < shards - 1 and (must_move or seen * shards >= total * (current + 1)):
            current += 1
        parts[current].append(t)
        seen += t.nbytes
    for name, part in zip(names, parts):
        write(f"{directory}/{name}", part, metadata)
    index = {"metadata": {"total_size": total},
             "weight_map": {t.name: name for name, part in zip(names, parts) for t in part}}
    with open(f"{directory}/{stem}.safetensors.index.json", "w", encoding="utf-8") as out:
        json.dump(index, out, indent=1, ensure_ascii=False)
        out.write("\n")
    return names
