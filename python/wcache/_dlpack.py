"""DLPack 1.1 by ctypes: memory of an entry as the capsules that frameworks take. Private."""

import ctypes
import gc
import sys
import typing

READ_ONLY = 1  # a flag of a versioned capsule

# DLDataTypeCode and bits by the format's names; what is not here goes as bytes.
DTYPES = {
    "BOOL": (6, 8), "U8": (1, 8), "I8": (0, 8), "U16": (1, 16), "I16": (0, 16), "U32": (1, 32), "I32": (0, 32),
    "U64": (1, 64), "I64": (0, 64), "F16": (2, 16), "F32": (2, 32), "F64": (2, 64), "BF16": (4, 16), "C64": (5, 64),
    "F8_E4M3": (10, 8), "F8_E5M2": (12, 8), "F8_E8M0": (14, 8),
}
BYTE = (1, 8)


class Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("dtype", DataType),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Managed(ctypes.Structure):
    _fields_ = [("dl_tensor", Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("dl_tensor", Tensor)]


# What a consumer has been given and not let go: address of the structure -> all that it points to, and the owner. A
# dictionary's own operations are whole for threads, in Pythons without a global lock too. A lock around them would be
# waited for for ever where the garbage collector ends a tensor in the thread that holds it.
_given: typing.Dict[int, tuple] = {}

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@_Deleter
def _delete(address, given=_given):
    """Called by the consumer, once, from whatever thread its last reference ends in, and at any moment of it."""
    given.pop(address, None)


# The capsule keeps a pointer to its name.
_NAME, _NAME_VERSIONED = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"dltensor_versioned")

def _python(name, result, *arguments):
    """A function of Python's own C API. Prototypes of its own: those of ctypes.pythonapi are everybody's."""
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _python("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_is_valid = _python("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_void_p)
_keep = _python("Py_IncRef", None, ctypes.py_object)

# Tensors may end after this module does, when the interpreter is taken down: the code that is called then must not go.
for _forever in (_delete, _NAME, _NAME_VERSIONED):
    _keep(_forever)

# Capsules that may not have been consumed yet, and what they are of. They have no destructor: Python calls that with the
# consumer's exception set where one refuses a capsule, and no Python code may run then. `sweep` ends them instead.
_offered: typing.List[typing.Tuple[object, int, ctypes.c_char_p]] = []


def _references(offer: tuple) -> int:
    return sys.getrefcount(offer[0])


_NOBODY_ELSE = _references((object(),))  # how many are there, where only the tuple has the object


def sweep(*_: object) -> None:
    """Lets go of what capsules hold that nobody has any more. Called with every capsule that is made, when a model is closed, and by
    the garbage collector."""
    for offer in _offered[:]:
        consumed = not _is_valid(offer[0], offer[2])  # a consumer gives it another name
        if not consumed and _references(offer) > _NOBODY_ELSE:
            continue
        try:
            _offered.remove(offer)
        except ValueError:
            continue  # another thread's sweep was sooner
        if not consumed:
            _given.pop(offer[1], None)


def _after_collection(phase: str, _: object) -> None:
    if phase == "stop":
        sweep()


gc.callbacks.append(_after_collection)


def capsule(address: int, shape: typing.Sequence[int], dtype: typing.Tuple[int, int], device: typing.Tuple[int, int],
            owner: object, *, read_only: bool = True, versioned: bool = False) -> object:
    """A contiguous tensor at `address`. `owner` is kept until the consumer lets it go."""
    ndim = len(shape)
    sizes, strides = (ctypes.c_int64 * max(ndim, 1))(*shape), (ctypes.c_int64 * max(ndim, 1))()
    step = 1
    for axis in reversed(range(ndim)):
        strides[axis] = step
        step *= shape[axis]
    managed: typing.Union[Managed, ManagedVersioned] = ManagedVersioned() if versioned else Managed()
    tensor = managed.dl_tensor
    tensor.data = address
    tensor.device = Device(*device)
    tensor.ndim = ndim
    tensor.dtype = DataType(*dtype, 1)
    tensor.shape, tensor.strides = sizes, strides
    managed.deleter = ctypes.cast(_delete, ctypes.c_void_p)
    if isinstance(managed, ManagedVersioned):
        managed.major, managed.minor, managed.flags = 1, 1, READ_ONLY if read_only else 0
    sweep()
    where = ctypes.addressof(managed)
    _given[where] = (managed, sizes, strides, owner)
    name = _NAME_VERSIONED if versioned else _NAME
    made = _new(where, name, None)
    _offered.append((made, where, name))
    return made


class Exporter:
    """A tensor of an entry for whatever framework takes DLPack: `framework.from_dlpack(exporter)`."""

    def __init__(self, address: int, shape: typing.Sequence[int], dtype: typing.Tuple[int, int],
                 device: typing.Tuple[int, int], owner: object, read_only: bool):
        self._tensor = (address, shape, dtype, device, owner)
        self._read_only = read_only

    def __dlpack_device__(self) -> typing.Tuple[int, int]:
        """DLPack's device type (1 CPU, 2 CUDA) and the device's number in this process."""
        return self._tensor[3]

    def __dlpack__(self, *, stream: object = None, max_version: typing.Optional[typing.Tuple[int, int]] = None,
                   dl_device: typing.Optional[typing.Tuple[int, int]] = None,
                   copy: typing.Optional[bool] = None) -> object:
        """A capsule. The bytes have been there since before the entry was published: no stream needs to wait."""
        if copy:
            raise BufferError("wcache shares memory, and does not copy it")
        if dl_device is not None and tuple(dl_device) != tuple(self._tensor[3]):
            raise BufferError(f"the tensor is on device {self._tensor[3]}, not on {dl_device}")
        versioned = max_version is not None and max_version[0] >= 1
        return capsule(*self._tensor, read_only=self._read_only, versioned=versioned)
