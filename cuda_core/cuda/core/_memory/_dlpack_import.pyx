# SPDX-License-Identifier: Apache-2.0
"""DLPack imports: a tensor of another library, checked before it is taken over, and given back once.

What is wrong with a tensor is found while the capsule still owns it: the capsule then calls the deleter when it goes,
as the specification says for capsules that nobody consumed.
"""

from cpython.exc cimport PyErr_Fetch, PyErr_Restore
from cpython.pycapsule cimport PyCapsule_CheckExact, PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_SetName
from cpython.ref cimport PyObject
from libc.stdint cimport uintptr_t
from libc.string cimport strcmp

from cuda.core._driver cimport is_finalizing
from cuda.core._fork cimport fork_generation
from cuda.core._memory._dlpack_abi cimport (
    DL_CPU,
    DL_CUDA,
    DL_CUDA_HOST,
    DL_CUDA_MANAGED,
    DL_READ_ONLY,
    DLPACK_MAJOR,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
)

from cuda.core._error_text import shown

cdef const char* _NAME = b"dltensor"
cdef const char* _NAME_VERSIONED = b"dltensor_versioned"
cdef const char* _USED = b"used_dltensor"
cdef const char* _USED_VERSIONED = b"used_dltensor_versioned"


cdef class ImportedTensor:
    """A managed tensor that was taken over. Its deleter is called once, with this object."""

    def __cinit__(self):
        self.generation = fork_generation()

    def __dealloc__(self):
        cdef PyObject* kind = NULL
        cdef PyObject* value = NULL
        cdef PyObject* trace = NULL
        # Somebody else's deleter may run Python, which is no longer there when the interpreter goes.
        if is_finalizing():
            return
        # And it may call the driver, which a forked child cannot.
        if self.generation != fork_generation() and self.tensor != NULL and self.tensor.device.device_type != DL_CPU:
            return
        PyErr_Fetch(&kind, &value, &trace)
        with nogil:
            if self.plain != NULL and self.plain.deleter != NULL:
                self.plain.deleter(self.plain)
            elif self.versioned != NULL and self.versioned.deleter != NULL:
                self.versioned.deleter(self.versioned)
        PyErr_Restore(kind, value, trace)


cdef int _check_tensor(DLTensor* tensor) except -1:
    """Refuse a tensor that cannot be read without going astray."""
    cdef int axis
    cdef object elements = 1
    if tensor.device.device_type not in (DL_CPU, DL_CUDA, DL_CUDA_HOST, DL_CUDA_MANAGED):
        raise BufferError(f"device not supported: DLPack device type {tensor.device.device_type}")
    if tensor.ndim < 0:
        raise BufferError(f"the tensor has a negative number of dimensions, {tensor.ndim}")
    if tensor.ndim and tensor.shape == NULL:
        raise BufferError(f"the tensor has {tensor.ndim} dimensions and no shape")
    if tensor.dtype.bits == 0 or tensor.dtype.lanes == 0:
        raise BufferError(
            f"the tensor's elements have {tensor.dtype.bits} bits and {tensor.dtype.lanes} lanes"
        )
    if tensor.dtype.bits * tensor.dtype.lanes % 8:
        raise BufferError(
            f"elements that are not whole bytes are not supported: code {tensor.dtype.code}, "
            f"{tensor.dtype.bits} bits, {tensor.dtype.lanes} lanes"
        )
    for axis in range(tensor.ndim):
        if tensor.shape[axis] < 0:
            raise BufferError(f"the tensor has a negative extent, {tensor.shape[axis]} in dimension {axis}")
        elements *= tensor.shape[axis]
    if elements * (tensor.dtype.bits * tensor.dtype.lanes // 8) > 2**63 - 1:
        raise BufferError(f"the tensor has {elements} elements, more bytes than an address space")
    if elements and tensor.data == NULL:
        raise BufferError(f"the tensor has {elements} elements and no memory")
    if <object><uintptr_t>tensor.data + <object>tensor.byte_offset > 2**63 - 1:
        raise BufferError(f"the tensor begins beyond all addresses, at byte offset {tensor.byte_offset}")
    return 0


cdef int _check_version(DLManagedTensorVersioned* managed) except -1:
    # Of another major version only the deleter may be used, which the capsule does.
    if managed.version.major != DLPACK_MAJOR:
        raise BufferError(
            f"DLPack version {managed.version.major}.{managed.version.minor} is not supported, only {DLPACK_MAJOR}.x"
        )
    return 0


cdef ImportedTensor take_managed(DLManagedTensorVersioned* managed):
    """Take over a tensor without a capsule. Where this raises, it is still the caller's."""
    cdef ImportedTensor self
    _check_version(managed)
    _check_tensor(&managed.dl_tensor)
    self = ImportedTensor.__new__(ImportedTensor)
    self.versioned = managed
    self.tensor = &managed.dl_tensor
    self.is_readonly = managed.flags & DL_READ_ONLY != 0
    return self


cdef ImportedTensor take_capsule(object capsule):
    """Take over the tensor of a capsule.

    Raises
    ------
    TypeError
        If it is no capsule.
    BufferError
        If it holds no tensor, or one that is wrong. The capsule still owns it then.
    """
    cdef ImportedTensor self
    cdef const char* name
    cdef DLManagedTensor* managed
    if not PyCapsule_CheckExact(capsule):
        raise TypeError(f"__dlpack__ must return a capsule, got {type(capsule).__name__}: {shown(capsule)}")
    name = PyCapsule_GetName(capsule)
    if name != NULL and strcmp(name, _NAME_VERSIONED) == 0:
        self = take_managed(<DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, _NAME_VERSIONED))
        try:
            PyCapsule_SetName(capsule, _USED_VERSIONED)
        except BaseException:
            self.versioned = NULL
            raise
        return self
    if name == NULL or strcmp(name, _NAME) != 0:
        raise BufferError(
            "the capsule holds no DLPack tensor, or one that was taken already: its name is "
            f"{shown(None if name == NULL else <bytes>name)}"
        )
    managed = <DLManagedTensor*>PyCapsule_GetPointer(capsule, _NAME)
    _check_tensor(&managed.dl_tensor)
    self = ImportedTensor.__new__(ImportedTensor)
    PyCapsule_SetName(capsule, _USED)
    self.plain = managed
    self.tensor = &managed.dl_tensor
    return self
