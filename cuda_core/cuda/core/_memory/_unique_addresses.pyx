# SPDX-License-Identifier: Apache-2.0
"""The owners of addresses of those Python-defined resources that ask to be watched (``unique_addresses = True``)."""

import weakref

cimport cython

from cuda.core._shared_containers cimport dict_item
from cuda.core._memory._allocation cimport Record, open_records_of
from cuda.core._memory._ownership cimport CLAIM_MASK, STATE_OWNED
from cuda.core._memory._transfer cimport has_passed_on

# (id of the resource, address) -> weak reference to the owner.
cdef dict _unique = {}


cdef Record unique_owner(object resource, Record record):
    """Return who owns the address of ``record`` in ``resource`` at this moment, or None."""
    cdef object known = dict_item(_unique, (id(resource), <size_t>record.pointer))
    cdef Record each, owner = known() if known is not None else None
    if owner is not None and has_passed_on(owner):  # the taker may not be entered yet, or be another resource's
        for each in open_records_of(resource):
            if each.pointer == record.pointer and (each.state() == STATE_OWNED or has_passed_on(each)):
                return each
    if owner is None or owner.state() != STATE_OWNED or owner.held_resource() is not resource:
        return None
    if owner.word.load() & CLAIM_MASK:
        return None  # it is being freed: from inside the deallocate the address may be given out again
    return owner


cdef object unique_entry(object resource, Record record):
    """Make what finds a record as the owner of its address."""
    key = (id(resource), <size_t>record.pointer)

    def forget(gone):
        with cython.critical_section(_unique):  # the address may have another owner by now
            if dict_item(_unique, key) is gone:
                del _unique[key]

    return weakref.ref(record, forget)


cdef int enter_unique(object resource, Record record, object entry) except -1:
    _unique[(id(resource), <size_t>record.pointer)] = entry
    return 0
