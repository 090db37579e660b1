#!/usr/bin/env python3
"""The DLPack capsules of the Python package, as a consumer reads them, and what ends with them.

    dlpack_test.py DIRECTORY-OF-THE-PACKAGE
"""

import ctypes
import gc
import sys
import threading
import unittest

package = sys.argv.pop(1)
sys.path.insert(0, package)
from wcache import _dlpack  # noqa: E402


def python(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


pointer_of = python("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
rename = python("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
USED, USED_VERSIONED = b"used_dltensor", b"used_dltensor_versioned"


class Owner:
    """Says when it goes."""

    def __init__(self, gone):
        self.gone = gone

    def __del__(self):
        self.gone.append(threading.get_ident())


class Capsules(unittest.TestCase):
    def setUp(self):
        self.gone = []

    def make(self, **options):
        return _dlpack.capsule(0x7000000, (2, 3, 4), (4, 16), (2, 5), Owner(self.gone), **options)

    def check_tensor(self, tensor):
        self.assertEqual(tensor.data, 0x7000000)
        self.assertEqual((tensor.device.device_type, tensor.device.device_id), (2, 5))
        self.assertEqual((tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes), (4, 16, 1))
        self.assertEqual((tensor.ndim, tensor.shape[:3], tensor.strides[:3]), (3, [2, 3, 4], [12, 4, 1]))
        self.assertEqual(tensor.byte_offset, 0)

    def consume(self, capsule, structure, name, used):
        """As a framework does: take the structure, rename the capsule, drop it; the deleter is for later."""
        address = pointer_of(capsule, name)
        self.assertEqual(rename(capsule, used), 0)
        taken = structure.from_address(address)
        return lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(taken.deleter)(address)

    def test_one_that_is_consumed(self):
        capsule = self.make()
        self.check_tensor(_dlpack.Managed.from_address(pointer_of(capsule, b"dltensor")).dl_tensor)
        delete = self.consume(capsule, _dlpack.Managed, b"dltensor", USED)
        del capsule
        gc.collect()
        self.assertEqual(self.gone, [])
        delete()
        self.assertEqual(len(self.gone), 1)

    def test_a_versioned_one_says_that_it_is_read_only(self):
        for read_only, flags in ((True, 1), (False, 0)):
            capsule = self.make(versioned=True, read_only=read_only)
            managed = _dlpack.ManagedVersioned.from_address(pointer_of(capsule, b"dltensor_versioned"))
            self.assertEqual((managed.major, managed.minor, managed.flags), (1, 1, flags))
            self.check_tensor(managed.dl_tensor)
        self.consume(capsule, _dlpack.ManagedVersioned, b"dltensor_versioned", USED_VERSIONED)()
        del capsule
        _dlpack.sweep()
        self.assertEqual(len(self.gone), 2)

    def test_one_that_nobody_takes(self):
        for versioned in (False, True):
            self.make(versioned=versioned)
        self.assertEqual(len(self.gone), 1)  # the next one ends those before
        gc.collect()
        self.assertEqual(len(self.gone), 2)
        self.assertEqual(_dlpack._given, {})

    def test_one_that_somebody_keeps_is_not_swept(self):
        capsule = self.make()
        gc.collect()
        self.make()
        self.assertEqual(self.gone, [])
        self.check_tensor(_dlpack.Managed.from_address(pointer_of(capsule, b"dltensor")).dl_tensor)

    def test_the_deleter_may_be_called_in_any_thread(self):
        deleters = [self.consume(self.make(), _dlpack.Managed, b"dltensor", USED) for _ in range(200)]
        threads = [threading.Thread(target=lambda part: [delete() for delete in part], args=(deleters[i::8],))
                   for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(self.gone), 200)
        self.assertNotIn(threading.get_ident(), self.gone)
        self.assertEqual(_dlpack._given, {})

    def test_the_deleter_may_be_called_by_the_garbage_collector_at_any_moment(self):
        """As when a tensor in a cycle of references ends while another is made, in the same thread."""
        class Garbage(dict):
            """What is given, with a collection in the middle of each change."""

            def __setitem__(self, address, kept):
                cycle = [Ending(deleters.pop())]
                cycle.append(cycle)
                del cycle
                gc.collect()
                dict.__setitem__(given, address, kept)

        class Ending:
            def __init__(self, delete):
                self.delete = delete

            def __del__(self):
                self.delete()

        deleters = [self.consume(self.make(), _dlpack.Managed, b"dltensor", USED)]
        given, _dlpack._given = _dlpack._given, Garbage()
        made = []
        thread = threading.Thread(target=lambda: made.append(self.make()), daemon=True)
        try:
            thread.start()
            thread.join(30)
        finally:
            _dlpack._given = given
        self.assertEqual(len(made), 1, "it waits for itself")
        self.assertEqual(len(self.gone), 1)
        made.clear()
        _dlpack.sweep()
        self.assertEqual((len(self.gone), given), (2, {}))

    def test_a_scalar(self):
        capsule = _dlpack.capsule(64, (), (2, 32), (1, 0), None)
        tensor = _dlpack.Managed.from_address(pointer_of(capsule, b"dltensor")).dl_tensor
        self.assertEqual((tensor.ndim, tensor.data), (0, 64))

    def test_an_exporter_gives_what_is_asked_for(self):
        exporter = _dlpack.Exporter(64, (4,), (1, 8), (2, 1), None, True)
        self.assertEqual(exporter.__dlpack_device__(), (2, 1))
        for options, name in (({}, b"dltensor"), ({"stream": 1}, b"dltensor"), ({"max_version": (0, 8)}, b"dltensor"),
                              ({"max_version": (1, 0)}, b"dltensor_versioned"),
                              ({"max_version": (1, 1), "dl_device": (2, 1), "copy": False}, b"dltensor_versioned")):
            self.assertTrue(pointer_of(exporter.__dlpack__(**options), name), options)
        self.assertRaises(BufferError, exporter.__dlpack__, copy=True)
        self.assertRaises(BufferError, exporter.__dlpack__, dl_device=(1, 0))


if __name__ == "__main__":
    unittest.main(verbosity=2)
