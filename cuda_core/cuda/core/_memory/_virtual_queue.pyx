# SPDX-License-Identifier: Apache-2.0
"""Parts of virtual memory that the queue returns: behind a stream, or some time where the driver has refused them."""

from cuda.core._memory._allocation cimport CLOSE_QUEUED, Record
from cuda.core._memory._queue cimport Job, discard_job, enqueue, keep_refused, new_job
from cuda.core._memory._virtual_parts cimport Failure, Parts, del_parts, move_parts, new_parts, return_parts
from cuda.core._stream_handle cimport StreamHandle


cdef bint _give_back(void* data, Failure* failure) noexcept nogil:
    return return_parts(<Parts*>data, failure)


cdef bint _discard(void* data, Failure* failure) noexcept nogil:
    del_parts(<Parts*>data)
    return True


cdef int queue_parts(Parts* source, Record record, StreamHandle* order, bint once, bint refused) except -1:
    """Hand parts to the queue, which answers for them from now on. Returns CLOSE_QUEUED.

    Parameters
    ----------
    source
        The parts; empty afterwards. On an error they are all there again.
    record
        What a report about them names.
    order
        The stream behind which they are returned.
    once
        Whether they are never tried again.
    refused
        Whether the driver has refused them before, so that there is no stream to wait for.
    """
    cdef Parts* parts = new_parts()
    cdef Job* job
    try:
        job = new_job(_give_back, _discard, parts, record, order)
    except BaseException:
        del_parts(parts)
        raise
    job.once = once
    move_parts(source, parts)
    try:
        if refused:
            keep_refused(job)
        else:
            enqueue(job)
    except BaseException:
        move_parts(parts, source)
        discard_job(job)
        raise
    return CLOSE_QUEUED
