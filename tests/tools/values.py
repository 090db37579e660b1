"""Content for tensors and files: deterministic, different everywhere, and finite where a dtype has NaNs.

The same seed gives the same bytes on every machine. Two tensors, and two blocks of one tensor, never hold the same
bytes, so that a test which compares bytes notices blocks that were swapped or shifted.
"""

import array
import random
import sys

# dtype -> (bytes of an element, byte that holds sign and exponent, mask of the bits kept there, bits set there).
# With the exponent held to a few values around one, neither NaN nor infinity can come up.
_FINITE = {
    "BF16": (2, 1, 0x83, 0x3C), "F16": (2, 1, 0x8F, 0x30), "F32": (4, 3, 0x83, 0x3C), "F64": (8, 7, 0x80, 0x3F),
    "C64": (4, 3, 0x83, 0x3C), "F8_E4M3": (1, 0, 0xB7, 0x00), "F8_E5M2": (1, 0, 0xBB, 0x00),
}


def random_bytes(nbytes, *key):
    """`nbytes` random bytes that depend on the key alone."""
    return random.Random(":".join(map(str, key))).randbytes(nbytes)


def tensor_bytes(dtype, nbytes, *key):
    """Bytes of a tensor whose elements are valid values of the dtype."""
    raw = random_bytes(nbytes, *key)
    if dtype == "BOOL":
        return raw.translate(bytes(b & 1 for b in range(256)))
    if dtype not in _FINITE:
        return raw
    step, at, keep, add = _FINITE[dtype]
    out = bytearray(raw)
    out[at::step] = raw[at::step].translate(bytes((b & keep) | add for b in range(256)))
    return bytes(out)


def _f32(numbers):
    out = array.array("f", numbers)
    if sys.byteorder == "big":
        out.byteswap()
    return out.tobytes()


def uniform_f32(count, spread, *key, centre=0.0):
    """`count` floats evenly spread around the centre: weights a real engine computes sensible numbers with."""
    rng = random.Random(":".join(map(str, key)))
    return _f32([centre + (2 * rng.random() - 1) * spread for _ in range(count)])


def constant_f32(count, value):
    return _f32([value]) * count


def zero_then_identity_f32(n):
    """The n x 2n matrix [0 | I]."""
    rows = array.array("f", bytes(8 * n * n))
    for i in range(n):
        rows[i * 2 * n + n + i] = 1.0
    return _f32(rows)
