"""The C ABI of libwcache (wcache.h) by ctypes. Private."""

import ctypes
import os
import pathlib

from . import _errors

SONAME = "libwcache.so.0"


class Entry(ctypes.Structure):
    """Opaque."""


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("role", ctypes.c_char_p), ("rank", ctypes.c_int32),
                ("wait_ms", ctypes.c_uint32)]


class Info(ctypes.Structure):
    _fields_ = [("role", ctypes.c_char_p), ("name", ctypes.c_char_p), ("fingerprint", ctypes.c_char_p),
                ("layout", ctypes.c_char_p), ("source", ctypes.c_char_p), ("nbytes", ctypes.c_uint64),
                ("ranks", ctypes.c_uint32)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("name_nbytes", ctypes.c_size_t), ("dtype", ctypes.c_char_p),
                ("shape", ctypes.POINTER(ctypes.c_uint64)), ("ndim", ctypes.c_size_t), ("nbytes", ctypes.c_uint64),
                ("data", ctypes.c_void_p), ("file", ctypes.c_char_p), ("offset", ctypes.c_uint64),
                ("rank", ctypes.c_uint32), ("digest", ctypes.c_char * 33)]


def _path():
    """$WCACHE_LIBRARY, else the one of the build that this package lies in, else what the loader finds."""
    given = os.environ.get("WCACHE_LIBRARY")
    if given:
        return given
    built = pathlib.Path(__file__).resolve().parents[2] / "lib" / SONAME
    return str(built) if built.exists() else SONAME


def _load():
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
    declare("wcache_tensor_at", ctypes.c_int, entry, ctypes.c_size_t, ctypes.POINTER(Tensor))
    declare("wcache_tensor_find", ctypes.c_int, entry, ctypes.c_char_p, ctypes.POINTER(Tensor))
    declare("wcache_last_message", ctypes.c_char_p)
    declare("wcache_last_hint", ctypes.c_char_p)
    declare("wcache_reason_name", ctypes.c_char_p, ctypes.c_int)
    return library


library = _load()


def text(raw):
    return raw.decode(errors="surrogateescape")


def check(reason):
    """Raises what a call failed with."""
    if reason != 0:
        raise _errors.make(text(library.wcache_reason_name(reason)), text(library.wcache_last_message()),
                           text(library.wcache_last_hint()))


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

    def info(self):
        info = Info()
        check(library.wcache_entry_info(self.pointer, ctypes.byref(info)))
        return info

    def count(self):
        return library.wcache_tensor_count(self.pointer)

    def at(self, number):
        tensor = Tensor()
        check(library.wcache_tensor_at(self.pointer, number, ctypes.byref(tensor)))
        return tensor

    def find(self, name):
        tensor = Tensor()
        check(library.wcache_tensor_find(self.pointer, name.encode(errors="surrogateescape"), ctypes.byref(tensor)))
        return tensor

    def memory(self, tensor):
        """The bytes of a tensor, read-only. They keep the entry attached."""
        if tensor.nbytes == 0:
            return memoryview(b"")
        array = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data)
        array.owner = self
        return memoryview(array).cast("B").toreadonly()
