# SPDX-License-Identifier: Apache-2.0
"""The name of an event for other processes."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cuda.bindings cimport cydriver
from libc.string cimport memcmp, memcpy

from cuda.core._error_text import shown
from cuda.core._sent_payload import check_of, ensure_as_sent

__all__ = []


cdef IPCEventDescriptor name_event(const cydriver.CUipcEventHandle* handle, bint blocking):
    cdef IPCEventDescriptor self = IPCEventDescriptor.__new__(IPCEventDescriptor)
    memcpy(&self.handle, handle, sizeof(self.handle))
    self.blocking = blocking
    return self


cdef class IPCEventDescriptor:
    """The name of an event for other processes. Get one from :attr:`Event.ipc_descriptor`; it can be pickled.

    It holds nothing: the event is the exporter's, who keeps it until all others are done. Two are equal that name the
    same event.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("IPCEventDescriptor objects cannot be made directly; they come from Event.ipc_descriptor")

    @staticmethod
    def _init(reserved, is_blocking_sync, check=None):
        """Make a descriptor of the bytes that another process has sent.

        Raises
        ------
        TypeError, ValueError
            If the payload has the wrong type or length, the flag is none, or the two are not what was sent.
        """
        cdef cydriver.CUipcEventHandle handle
        cdef bytes payload
        if not isinstance(reserved, bytes):
            raise TypeError(
                f"the payload of an event's descriptor must be bytes, got {type(reserved).__name__}: {shown(reserved)}"
            )
        if len(reserved) != sizeof(handle):
            raise ValueError(
                f"the payload of an event's descriptor is {len(reserved)} bytes; expected {sizeof(handle)}"
            )
        if type(is_blocking_sync) is not bool:
            raise TypeError(f"is_blocking_sync must be True or False, got {shown(is_blocking_sync)}")
        payload = bytes(reserved)
        if check is not None:
            ensure_as_sent("event", check, payload, is_blocking_sync)
        memcpy(&handle, <const char*>payload, sizeof(handle))
        return name_event(&handle, is_blocking_sync)

    def __reduce__(self) -> tuple[object, ...]:
        payload = PyBytes_FromStringAndSize(<const char*>&self.handle, sizeof(self.handle))
        blocking = bool(self.blocking)
        return IPCEventDescriptor._init, (payload, blocking, check_of("event", payload, blocking))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IPCEventDescriptor):
            return NotImplemented
        return memcmp(&self.handle, &(<IPCEventDescriptor>other).handle, sizeof(self.handle)) == 0

    __hash__ = None

    def __repr__(self) -> str:
        return "<IPCEventDescriptor>"
