# SPDX-License-Identifier: Apache-2.0
"""The owners of addresses of those Python-defined resources that ask to be watched (``unique_addresses = True``)."""

import weakref

cimport cython

from cuda.core._memory._allocation cimport Record
from cuda.core._memory._ownership cimport CLAIM_MASK, STATE_OWNED

# (id of the resource, address) -> weak reference to the owner.
cdef dict _unique = {}


cdef Record unique_owner(object resource, Record record):
    """Return who owns the address of ``record`` in ``resource`` at this moment, or None."""
    cdef object known = _unique.get((id(resource), <size_t>record.pointer))
    cdef Record owner = known() if known is not None else None
    if owner is None or owner.state() != STATE_OWNED or owner.held_resource() is not resource:
        return None
    if owner.word.load() & CLAIM_MASK:
        return None  # it is being freed: from inside the deallocate the address may be given out again
    return owner


cdef int enter_unique(object resource, Record record) except -1:
    key = (id(resource), <size_t>record.pointer)

    def forget(gone):
        with cython.critical_section(_unique):  # the address may have another owner by now
            if _unique.get(key) is gone:
                del _unique[key]

    _unique[key] = weakref.ref(record, forget)
    return 0
