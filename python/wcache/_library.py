"""The C ABI of libwcache (wcache.h) by ctypes. Private."""

import ctypes
import os
import pathlib
import typing

from . import _errors

SONAME = "libwcache.so.0"

DEVICE_TYPE_CPU, DEVICE_TYPE_CUDA = 1, 2


class Entry(ctypes.Structure):
    """Opaque."""


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("role", ctypes.c_char_p), ("rank", ctypes.c_int32),
                ("wait_ms", ctypes.c_uint32)]


class Info(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("name", ctypes.c_char_p), ("fingerprint", ctypes.c_char_p),
                ("layout", ctypes.c_char_p), ("source", ctypes.c_char_p), ("nbytes", ctypes.c_uint64),
                ("ranks", ctypes.c_uint32), ("survives", ctypes.c_int32), ("tier", ctypes.c_char_p),
                ("ipc_kind", ctypes.c_char_p), ("device_uuid", ctypes.c_char_p)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_nbytes", ctypes.c_size_t), ("number", ctypes.c_size_t),
                ("dtype", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_uint64)), ("ndim", ctypes.c_size_t),
                ("nbytes", ctypes.c_uint64), ("data", ctypes.c_void_p), ("base", ctypes.c_void_p),
                ("base_nbytes", ctypes.c_uint64), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
                ("read_only", ctypes.c_int32), ("rank", ctypes.c_uint32), ("file", ctypes.c_char_p),
                ("offset", ctypes.c_uint64), ("slab", ctypes.c_uint32), ("slab_offset", ctypes.c_uint64),
                ("digest", ctypes.c_char * 33)]


# The structures by their names in wcache.h.
STRUCTURES = {"wcache_options": Options, "wcache_info": Info, "wcache_tensor": Tensor}


def _path() -> str:
    """$WCACHE_LIBRARY, else the one beside the package (a wheel's), else the one of the build that the package lies in, else
    what the loader finds."""
    given = os.environ.get("WCACHE_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve().parent
    for beside in (here / SONAME, here.parents[1] / "lib" / SONAME):
        if beside.exists():
            return str(beside)
    return SONAME


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_path())
    entry = ctypes.POINTER(Entry)

    def declare(name, result, *arguments):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments

    declare("wcache_version", ctypes.c_char_p)
    declare("wcache_open", ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(Options),
            ctypes.POINTER(entry))
    declare("wcache_close", None, entry)
    declare("wcache_entry_info", ctypes.c_int, entry, ctypes.POINTER(Info))
    declare("wcache_tensor_count", ctypes.c_size_t, entry)
    declare("wcache_tensor_describe", ctypes.c_int, entry, ctypes.c_size_t, ctypes.POINTER(Tensor))
    declare("wcache_tensor_number", ctypes.c_int, entry, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t))
    declare("wcache_tensor_find_bytes", ctypes.c_int, entry, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Tensor))
    declare("wcache_read", ctypes.c_int, entry, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint64)
    declare("wcache_redeem", ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64))
    declare("wcache_last_message", ctypes.c_char_p)
    declare("wcache_last_hint", ctypes.c_char_p)
    declare("wcache_reason_name", ctypes.c_char_p, ctypes.c_int)
    return library


library = _load()


def text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def check(reason: int) -> None:
    """Raises what a call failed with."""
    if reason != 0:
        raise _errors.make(text(library.wcache_reason_name(reason)), text(library.wcache_last_message()),
                           text(library.wcache_last_hint()))


def redeem(handle: str) -> typing.Tuple[int, int]:
    descriptor, nbytes = ctypes.c_int(-1), ctypes.c_uint64()
    check(library.wcache_redeem(os.fsencode(handle), ctypes.byref(descriptor), ctypes.byref(nbytes)))
    return descriptor.value, nbytes.value


class Handle:
    """An attached entry: let go when nothing refers to it any more, tensors included."""

    def __init__(self, entry, run_dir, role, rank, wait):
        self.pointer = None
        options = Options(ctypes.sizeof(Options), None if role is None else os.fsencode(role),
                          -1 if rank is None else rank, round(wait * 1000))
        pointer = ctypes.POINTER(Entry)()
        check(library.wcache_open(os.fsencode(entry), None if run_dir is None else os.fsencode(run_dir),
                                  ctypes.byref(options), ctypes.byref(pointer)))
        self.pointer = pointer

    def __del__(self, close=library.wcache_close):
        if self.pointer is not None:
            close(self.pointer)

    def info(self) -> Info:
        info = Info()
        check(library.wcache_entry_info(self.pointer, ctypes.byref(info)))
        return info

    def count(self) -> int:
        return library.wcache_tensor_count(self.pointer)

    def number(self, name: str) -> int:
        number, raw = ctypes.c_size_t(), name.encode(errors="surrogateescape")
        check(library.wcache_tensor_number(self.pointer, raw, len(raw), ctypes.byref(number)))
        return number.value

    def describe(self, number: int) -> Tensor:
        """Without asking a device for anything: of a tensor on one, where it is is not known."""
        tensor = Tensor()
        check(library.wcache_tensor_describe(self.pointer, number, ctypes.byref(tensor)))
        return tensor

    def find(self, name: str) -> Tensor:
        """With its memory mapped."""
        tensor = Tensor()
        raw = name.encode(errors="surrogateescape")
        check(library.wcache_tensor_find_bytes(self.pointer, raw, len(raw), ctypes.byref(tensor)))
        return tensor

    def memory(self, tensor: Tensor) -> memoryview:
        """The bytes of a tensor, read-only: of one in host memory themselves, which keep the entry attached, else a copy."""
        if tensor.nbytes == 0:
            return memoryview(b"")
        if tensor.device_type != DEVICE_TYPE_CPU:
            return memoryview(self.read(tensor)).toreadonly()
        array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data)
        array.owner = self
        return memoryview(array).cast("B").toreadonly()

    def read(self, tensor: Tensor) -> bytearray:
        """A copy of the bytes of a tensor."""
        out = bytearray(tensor.nbytes)
        if out:
            to = (ctypes.c_ubyte * len(out)).from_buffer(out)
            check(library.wcache_read(self.pointer, tensor.number, 0, to, len(out)))
        return out
