# SPDX-License-Identifier: Apache-2.0
"""The other side of DLPack, written with ctypes from the specification: a consumer, and producers that misbehave.

Nothing here uses the package under test, so its structures are checked against a second reading of the specification.
"""

import ctypes
from ctypes import (
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
READ_ONLY, IS_COPIED = 1, 2

_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = py_object, (c_void_p, c_char_p, c_void_p)
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (py_object, c_char_p)
_name = _api.PyCapsule_GetName
_name.restype, _name.argtypes = c_char_p, (py_object,)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = c_int, (py_object, c_char_p)
_raw_pointer = ctypes.PyDLL(None).PyCapsule_GetPointer
_raw_pointer.restype, _raw_pointer.argtypes = c_void_p, (c_void_p, c_char_p)
_raw_is_valid = ctypes.PyDLL(None).PyCapsule_IsValid
_raw_is_valid.restype, _raw_is_valid.argtypes = c_int, (c_void_p, c_char_p)

# Calls through the first let go of the GIL, calls through the second keep it.
WITHOUT_GIL = ctypes.CFUNCTYPE(None, c_void_p)
WITH_GIL = ctypes.PYFUNCTYPE(None, c_void_p)

# Names have to outlive the capsules that have them.
PLAIN, VERSIONED = b"dltensor", b"dltensor_versioned"
PLAIN_USED, VERSIONED_USED = b"used_dltensor", b"used_dltensor_versioned"


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("manager_ctx", c_void_p), ("deleter", c_void_p))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", Tensor),
    )


class Taken:
    """What a consumer has taken out of a capsule: the fields, and the duty to call the deleter once."""

    def __init__(self, managed):
        tensor = managed.tensor
        self.address = ctypes.addressof(managed)
        self.deleter = managed.deleter
        self.flags = getattr(managed, "flags", None)
        self.version = (managed.major, managed.minor) if hasattr(managed, "major") else None
        self.data = (tensor.data or 0) + tensor.byte_offset
        self.device = (tensor.device_type, tensor.device_id)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[: tensor.ndim])
        self.strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None

    def delete(self):
        """Call the deleter without the GIL."""
        WITHOUT_GIL(self.deleter)(self.address)

    def delete_with_gil(self):
        WITH_GIL(self.deleter)(self.address)

    def delete_in_foreign_thread(self):
        """Call the deleter as the only thing that a thread does which Python has never seen."""
        library, thread = ctypes.CDLL(None), c_uint64()
        assert (
            library.pthread_create(ctypes.byref(thread), None, c_void_p(self.deleter), c_void_p(self.address))
            == 0
        )
        assert library.pthread_join(thread, None) == 0


def look(capsule):
    """Return the fields of a capsule without consuming it."""
    name = _name(capsule)
    managed = ManagedVersioned if name == VERSIONED else Managed
    return Taken(managed.from_address(_pointer(capsule, name)))


def consume(capsule):
    """Take a capsule over, as the specification asks: rename it, so that its destructor leaves the tensor alone."""
    taken = look(capsule)
    name = _name(capsule)
    assert _rename(capsule, PLAIN_USED if name == PLAIN else VERSIONED_USED) == 0
    return taken


def take(producer, **keywords):
    return consume(producer.__dlpack__(**keywords))


class Producer:
    """An exporter whose every field can be made wrong. ``deleted`` counts the calls of its deleter.

    ``memory`` is what ``data`` points to by default; ``strides=None`` is the NULL that stands for C order.
    """

    def __init__(
        self,
        shape=(4,),
        strides=None,
        dtype=(FLOAT, 32, 1),
        *,
        device=(CPU, 0),
        tensor_device=None,
        data=None,
        byte_offset=0,
        ndim=None,
        version=None,
        flags=0,
        deleter=True,
        name=None,
        null_shape=False,
    ):
        self.device, self.deleted, self.asked = device, 0, []
        self.memory = (ctypes.c_char * 4096)()
        self._shape = (c_int64 * max(len(shape), 1))(*shape)
        self._strides = None if strides is None else (c_int64 * max(len(strides), 1))(*strides)
        self.managed = Managed() if version is None else ManagedVersioned()
        if version is not None:
            self.managed.major, self.managed.minor = version
            self.managed.flags = flags
        tensor = self.managed.tensor
        tensor.data = ctypes.addressof(self.memory) if data is None else data
        tensor.device_type, tensor.device_id = device if tensor_device is None else tensor_device
        tensor.ndim = len(shape) if ndim is None else ndim
        tensor.code, tensor.bits, tensor.lanes = dtype
        tensor.byte_offset = byte_offset
        pointer = ctypes.POINTER(c_int64)
        tensor.shape = pointer() if null_shape else ctypes.cast(self._shape, pointer)
        tensor.strides = pointer() if strides is None else ctypes.cast(self._strides, pointer)
        self._deleter = WITH_GIL(self._delete)
        if deleter:
            self.managed.deleter = ctypes.cast(self._deleter, c_void_p)
        self._destructor = WITH_GIL(self._drop)
        self._first_name = (PLAIN if version is None else VERSIONED) if name is None else name

    def _delete(self, address):
        assert address == ctypes.addressof(self.managed)
        self.deleted += 1

    def _drop(self, capsule):
        if _raw_is_valid(capsule, self._first_name) and self.managed.deleter:
            self._delete(_raw_pointer(capsule, self._first_name))

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        return _new(ctypes.addressof(self.managed), self._first_name, ctypes.cast(self._destructor, c_void_p))

    def __dlpack_device__(self):
        return self.device
