# SPDX-License-Identifier: Apache-2.0
from cuda.bindings cimport cydriver

cdef enum ObjectKind:
    A_STREAM = 0
    AN_EVENT = 1
    A_USER_OBJECT = 2

# What the driver would not destroy, with its context and that one's number, 0 where it is not known.
cdef void keep_undestroyed(ObjectKind kind, void* handle, cydriver.CUcontext context, unsigned long long context_id,
                           cydriver.CUresult refusal) noexcept nogil
cdef long undestroyed(ObjectKind kind) noexcept nogil
cdef void try_undestroyed() noexcept nogil
# Destroy an event that the package has made for itself in this context, or keep it.
cdef void end_own_event(cydriver.CUevent event, cydriver.CUcontext context) noexcept nogil
cdef void end_user_object(cydriver.CUuserObject object_) noexcept nogil
