# SPDX-License-Identifier: Apache-2.0
from cuda.core._memory._allocation cimport Record
from cuda.core._stream_handle cimport StreamHandle

cdef enum:
    NO_SYNC = -1        # what a consumer gives for "I order it myself"
    NO_STREAM = -2      # None: the consumer has no stream

# A stream as consumers of DLPack and of the array interfaces name it: NO_SYNC, NO_STREAM, or its number.
cdef object stream_number(object stream, str name)
cdef StreamHandle* consumer_handle(object number, int device_id, StreamHandle* producer) except? NULL
cdef int order_behind(StreamHandle* consumer, StreamHandle* producer) except -1
cdef Record ordering_record(Record record)
cdef StreamHandle* lasting_stream(StreamHandle* consumer) except NULL
cdef int join_order(Record record, StreamHandle* consumer, StreamHandle* lasting) except -1
