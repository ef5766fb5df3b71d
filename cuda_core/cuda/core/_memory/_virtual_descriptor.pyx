# SPDX-License-Identifier: Apache-2.0
"""What travels between processes for a buffer on virtual memory: a handle for each chunk, and how large each is.

The driver does not say how large an imported chunk is, so the sizes travel along. They are believed no further than
that the driver maps them.
"""

import os

from cuda.bindings cimport cydriver

from cuda.core._memory._arguments cimport size_argument
from cuda.core._memory._ipc cimport IPCAllocationHandle, own_descriptor

from cuda.core._error_text import shown
from cuda.core._memory._ipc import _receive
from cuda.core._memory._sending import when_something_can_be_sent
from cuda.core._sent_payload import check_of, ensure_as_sent
from cuda.core._start_method import warn_under_fork

__all__ = ["VirtualBufferDescriptor"]

FABRIC_BYTES = sizeof(cydriver.CUmemFabricHandle)
MOST_CHUNKS = 1 << 20  # a message that says more is wrong, or meant to exhaust the receiver


cdef VirtualBufferDescriptor describe_chunks(size_t size, tuple sizes, tuple handles):
    cdef VirtualBufferDescriptor self = VirtualBufferDescriptor.__new__(VirtualBufferDescriptor)
    self.size, self.sizes, self.handles = size, sizes, handles
    return self


cdef class VirtualBufferDescriptor:
    """What another process needs to import a buffer on virtual memory. Get one from :attr:`Buffer.ipc_descriptor`.

    It holds a file descriptor for each chunk of the buffer. These keep the memory allocated, also when the buffer is
    closed, until the descriptor is closed or gone. It can be sent through ``multiprocessing``; the receiver gets
    descriptors of its own. With fabric handles there is nothing to close, and any pickle can carry it.

    Attributes
    ----------
    size : int
        The size of the buffer in bytes.

    Notes
    -----
    Safe from any thread. It stands for the chunks that the buffer had when it was made: what a later grow adds, or a
    pause and resume replaces, is not in it.

    Examples
    --------
    >>> with buffer.ipc_descriptor as descriptor:  # doctest: +SKIP
    ...     pipe.send(descriptor)
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError(
            "VirtualBufferDescriptor objects cannot be made directly; they come from Buffer.ipc_descriptor"
        )

    def close(self) -> None:
        """Close the file descriptors. Closing twice is harmless. What was imported through them stays."""
        for handle in self.handles:
            if isinstance(handle, IPCAllocationHandle):
                handle.close()

    def __enter__(self) -> VirtualBufferDescriptor:
        return self

    def __exit__(self, exc_type: object, exc_value: object, traceback: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """bool: whether it was closed. False for fabric handles, which cannot be."""
        return any(isinstance(handle, IPCAllocationHandle) and handle.is_closed for handle in self.handles)

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """tuple of int: the size of each chunk in bytes."""
        return self.sizes

    def __copy__(self) -> Never:
        raise TypeError("a VirtualBufferDescriptor cannot be copied: its file descriptors are closed once")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError("a VirtualBufferDescriptor cannot be copied: its file descriptors are closed once")

    def __reduce__(self) -> tuple[object, ...]:
        if any(isinstance(handle, IPCAllocationHandle) for handle in self.handles):
            raise TypeError(
                "a VirtualBufferDescriptor can only be sent through multiprocessing: a pickle carries no file "
                "descriptor"
            )
        return _receive_descriptor, (self.size, self.sizes, self.handles, self._check())

    cdef object _check(self):
        """Return the check that travels along: on the numbers, and on handles that the driver wrote."""
        return check_of("virtual memory", _payload(self.handles), self.size, *self.sizes)

    def __repr__(self) -> str:
        closed = " closed" if self.is_closed else ""
        return f"<VirtualBufferDescriptor{closed} size={self.size} chunks={len(self.sizes)}>"


# --- on the way ---------------------------------------------------------------------------------------------------


cdef bytes _payload(tuple parts):
    """Return the bytes among handles. A file descriptor has another number in each process, and is not in them."""
    return b"".join([part for part in parts if type(part) is bytes])


def _reduce_descriptor(descriptor):
    """Let a descriptor be sent through ``multiprocessing``, which hands out a duplicate of each file descriptor.

    Never by inheritance, also to a process that is being started: that would want the descriptors open until it runs,
    and a buffer that is sent makes its descriptor for the time of the pickling only.
    """
    from multiprocessing import resource_sharer

    cdef VirtualBufferDescriptor self = descriptor
    cdef IPCAllocationHandle handle
    warn_under_fork()
    _ensure_room(self.handles)
    parts = []
    try:
        for each in self.handles:
            if not isinstance(each, IPCAllocationHandle):
                parts.append(each)
                continue
            handle = each
            number = handle.hold()
            try:
                parts.append(resource_sharer.DupFd(number))
            finally:
                handle.let_go()
    except BaseException:
        _take_back(parts)
        raise
    return _receive_descriptor, (self.size, self.sizes, tuple(parts), self._check())


cdef int _ensure_room(tuple handles) except -1:
    """Raise OSError unless all file descriptors can be duplicated.

    What was handed to multiprocessing can be taken back over a socket only, and where the process has no more file
    descriptors there is none for that.
    """
    cdef IPCAllocationHandle handle
    duplicates = []
    try:
        for each in handles:
            if isinstance(each, IPCAllocationHandle):
                handle = each
                number = handle.hold()
                try:
                    duplicates.append(os.dup(number))
                finally:
                    handle.let_go()
    finally:
        for number in duplicates:
            os.close(number)
    return 0


cdef int _take_back(list parts) except -1:
    """Take duplicates back that were made for a message that is not sent. They would keep the memory."""
    for part in parts:
        if type(part) is bytes:
            continue
        try:
            os.close(part.detach())
        except Exception:  # it stays with multiprocessing, and the error that has led here is the one that is told
            pass
    return 0


cdef int _ensure_layout(object size, object sizes, object parts) except -1:
    """Raise ValueError unless the numbers and handles of a message fit together."""
    cdef size_t total = 0
    if type(sizes) is not tuple or type(parts) is not tuple or len(sizes) != len(parts):
        raise ValueError(f"what was received names no chunks: {shown(sizes)}, {shown(parts)}")
    if len(sizes) > MOST_CHUNKS:
        raise ValueError(f"what was received names {len(sizes)} chunks, more than any buffer has")
    for value in (size, *sizes):
        if type(value) is not int or value < 0 or value >= 2**63:
            raise ValueError(f"what was received says a size of {shown(value)}")
    for value in sizes:
        if not value:
            raise ValueError("what was received says that a chunk is empty")
        total += size_argument(value, "size")
        if total >= 2**63:
            raise ValueError("what was received says a size that no memory has")
    if size > total or (total and not size):
        raise ValueError(f"what was received says a size of {size} bytes in chunks of {total} bytes")
    for part in parts:
        if type(part) is bytes and len(part) != FABRIC_BYTES:
            raise ValueError(f"a fabric handle is {FABRIC_BYTES} bytes, got {len(part)}")
    return 0


def _receive_descriptor(size, sizes, parts, check):
    """Make the descriptor in the process that has received it. It owns the file descriptors that have come along."""
    _ensure_layout(size, sizes, parts)
    ensure_as_sent("virtual memory", check, _payload(parts), size, *sizes)
    handles = []
    try:
        for part in parts:
            handles.append(part if type(part) is bytes else own_descriptor(_receive(part), None))
    except BaseException:
        for handle in handles:
            if isinstance(handle, IPCAllocationHandle):
                handle.close()
        raise
    enable_sending_descriptors()
    return describe_chunks(size, sizes, tuple(handles))


cdef int enable_sending_descriptors() except -1:
    """Tell multiprocessing how descriptors are sent.

    Before anything is pickled that may need it: a pickler takes the list of what it knows when it begins, and a buffer
    makes its descriptor in the middle. Not with the package: most programs never share anything.
    """
    when_something_can_be_sent(_register)
    return 0


def _register(reduction):
    reduction.register(VirtualBufferDescriptor, _reduce_descriptor)
