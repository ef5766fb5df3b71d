# SPDX-License-Identifier: Apache-2.0
"""Contexts that are gone, with everything in them: which one an allocation belonged to, and that it was told of once.

A release knows the stream that orders it, and that says little about where the memory lies: a default stream belongs
to the context of the thread which allocated, and a buffer of one device may be ordered by a stream of another. So the
place is taken from the memory: its device where it has one, and for memory of the host the context it was made in.
"""

cimport cython
from cuda.bindings cimport cydriver

from cuda.core._context cimport device_of_primary_context
from cuda.core._shared_containers cimport dict_item
from cuda.core._memory._allocation cimport Record
from cuda.core._stream_handle cimport STREAM_SET, StreamHandle, drop_stream

# Devices are numbered from 1 on, contexts by their address. The primary context of a device is that device.
cdef enum:
    _DEVICES = 4096

# Place -> the numbers of the contexts there that were told of.
cdef dict _reported = {}


cdef size_t place_of_device(int ordinal) noexcept nogil:
    return <size_t>ordinal + 1 if 0 <= ordinal < _DEVICES else 0


cdef size_t place_of_context(cydriver.CUcontext context) noexcept:
    cdef int ordinal = device_of_primary_context(context)
    return place_of_device(ordinal) if ordinal >= 0 else <size_t>context


cdef size_t place_of(Record record) noexcept:
    """Return the place of an allocation, as far as its record knows it. No driver call: what is lost answers none."""
    cdef StreamHandle* order
    cdef StreamHandle* stream
    cdef size_t place
    cdef int ordinal = record.device_id
    if ordinal < 0 and record.resource is not None:
        try:
            ordinal = record.resource.device_id
        except Exception:  # it is not bound to a device, or an author's property fails
            ordinal = -1
    if ordinal >= 0:
        return place_of_device(ordinal)
    order = record.hold_stream()  # another thread may replace it
    stream = _first_of(order)
    place = place_of_context(stream.context) if stream != NULL and stream.context != NULL else 0
    drop_stream(order)
    return place


cdef StreamHandle* _first_of(StreamHandle* order) noexcept:
    return order.members[0] if order != NULL and order.kind == STREAM_SET and order.member_count else order


cdef unsigned long long number_of(Record record, size_t place) noexcept:
    cdef StreamHandle* order = record.hold_stream()
    cdef StreamHandle* stream = _first_of(order)
    cdef unsigned long long number = 0
    if stream != NULL and stream.context != NULL and place_of_context(stream.context) == place:
        number = stream.context_id
    drop_stream(order)
    return number


cdef bint first_report_of(size_t place, unsigned long long number) except -1:
    """Whether the loss of this context has not been told of yet. One report tells as much as a thousand.

    A primary context that was reset comes back at its place with another number, and can be lost again. Where a number
    is not known it is taken to be the one that was told. What nobody can place is told of each time: silence could hide
    another context.
    """
    cdef set numbers
    if not place:
        return True
    with cython.critical_section(_reported):
        numbers = dict_item(_reported, place)
        if numbers is None:
            _reported[place] = {number}
            return True
        if not number or number in numbers:
            return False
        numbers.add(number)
        return len(numbers) > 2 or 0 not in numbers


cdef str describe_place(size_t place):
    if not place:
        return "a context that is not known"
    if place <= _DEVICES:
        return f"device {place - 1}"
    return f"the context at {place:#x}"
