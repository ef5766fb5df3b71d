# SPDX-License-Identifier: Apache-2.0
"""Pointers of other processes, counted: the driver gives one address for each, and the first free ends it for all.

Each buffer that was imported has a share of its address. The last share frees, behind the streams of all of them. A
pointer that is open is not imported again: for memory of a device the driver would give the same address, for memory of
the host it refuses (recorded on an H200). While a free is pending it gives the address once more, as a new import that
this free does not end (recorded as well).

Imports and frees go through one mutex, so that no import returns an address that is just being freed. It is taken
without the GIL and held for driver calls that wait for nothing; nothing that may need the GIL happens under it.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy, memset
from libcpp.atomic cimport atomic

from cuda.core._memory._import_access cimport grant_access_behind, withdraw_access
from cuda.core._memory._pending_frees cimport PendingFrees
from cuda.core._memory._pool_handle cimport PoolHandle
from cuda.core._memory._pool_release cimport free_in_order
from cuda.core._pthread cimport (
    pthread_atfork,
    pthread_mutex_init,
    pthread_mutex_lock,
    pthread_mutex_t,
    pthread_mutex_unlock,
)
from cuda.core._stream_handle cimport (
    STREAM_SET,
    StreamHandle,
    ask_whether_captured,
    release_stream,
    retain_stream,
    stream_is_gone,
    stream_is_idle,
)

cdef extern from "Python.h":
    int Py_AddPendingCall(int (*)(void*) noexcept, void*) nogil

cdef enum:
    _BUCKETS = 1024
    _MANY = 8           # streams of one address, before those are looked for that are idle by now

cdef pthread_mutex_t _mutex
cdef ImportedPointer* _by_address[_BUCKETS]
cdef ImportedPointer* _by_name[_BUCKETS]
cdef ImportedPointer* _ended = NULL  # their streams have to be let go by a thread that may take the GIL
cdef atomic[long] _live


cpdef long live_imports() noexcept:
    """Return how many addresses of other processes are open here."""
    return _live.load()


cdef void _begin() noexcept nogil:
    """Start with nothing, also in the child of a fork: there the imports, and perhaps the mutex, are the parent's."""
    global _ended
    pthread_mutex_init(&_mutex, NULL)
    memset(_by_address, 0, sizeof(_by_address))
    memset(_by_name, 0, sizeof(_by_name))
    _ended = NULL
    _live.store(0)


_begin()
if pthread_atfork(NULL, NULL, _begin) != 0:
    raise MemoryError("no memory for a fork handler")


# --- the table ----------------------------------------------------------------------------------------------------


cdef ImportedPointer** _place_of(uintptr_t address) noexcept nogil:
    """Return where the entry of an address hangs, or would. The mutex is held."""
    cdef ImportedPointer** place = &_by_address[(<uint64_t>address * <uint64_t>0x9E3779B97F4A7C15) >> 54]
    while place[0] != NULL and place[0].address != address:
        place = &place[0].next
    return place


cdef long shares_of(ImportedPointer* entry) noexcept nogil:
    """Return how many shares there are."""
    cdef long shares
    pthread_mutex_lock(&_mutex)
    shares = entry.shares
    pthread_mutex_unlock(&_mutex)
    return shares


cdef bint has_shares(uintptr_t address) noexcept nogil:
    """Whether an address was imported and is open."""
    cdef ImportedPointer* entry
    cdef bint shared
    pthread_mutex_lock(&_mutex)
    entry = _place_of(address)[0]
    shared = entry != NULL and entry.shares > 0
    pthread_mutex_unlock(&_mutex)
    return shared


cdef ImportedPointer** _place_of_name(
    cydriver.CUmemoryPool pool, const cydriver.CUmemPoolPtrExportData* data
) noexcept nogil:
    """Return where the entry of a payload hangs, or would. The mutex is held."""
    cdef const uint64_t* words = <const uint64_t*>data
    cdef uint64_t mixed = <uint64_t><uintptr_t>pool
    cdef ImportedPointer** place
    cdef size_t word
    for word in range(sizeof(data[0]) // sizeof(uint64_t)):
        mixed = (mixed ^ words[word]) * <uint64_t>0x9E3779B97F4A7C15
    place = &_by_name[mixed >> 54]
    while place[0] != NULL and (place[0].pool != pool or memcmp(&place[0].data, data, sizeof(data[0])) != 0):
        place = &place[0].next_name
    return place


cdef void _name(ImportedPointer* entry, cydriver.CUmemoryPool pool,
                const cydriver.CUmemPoolPtrExportData* data) noexcept nogil:
    """Let an entry that has no name be found by a payload. The mutex is held."""
    entry.pool = pool
    memcpy(&entry.data, data, sizeof(data[0]))
    _place_of_name(pool, data)[0] = entry


cdef void _unname(ImportedPointer* entry) noexcept nogil:
    """The opposite."""
    _place_of_name(entry.pool, &entry.data)[0] = entry.next_name
    entry.next_name = NULL


cdef void _take_out(ImportedPointer* entry) noexcept nogil:
    """Take an entry out of the table. The mutex is held."""
    _place_of(entry.address)[0] = entry.next
    entry.next = NULL
    _unname(entry)


cdef bint _has_any_of(cydriver.CUmemoryPool pool) noexcept nogil:
    """Whether anything of a pool is open here, or was left to others. The mutex is held."""
    cdef ImportedPointer* entry
    cdef int bucket
    for bucket in range(_BUCKETS):
        entry = _by_name[bucket]
        while entry != NULL:
            if entry.pool == pool:
                return True
            entry = entry.next_name
    return False


cdef cydriver.CUresult _import(PoolHandle* handle, cydriver.CUmemPoolPtrExportData* data, cydriver.CUdeviceptr* address,
                               const char** function) noexcept nogil:
    """Import a pointer, and let the devices of its pool have access. The mutex is held."""
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef const char* refused = NULL
    if handle.granted and not _has_any_of(handle.pool):
        result = withdraw_access(handle, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuMemPoolImportPointer"
        result = cydriver.cuMemPoolImportPointer(address, handle.pool, data)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        result = grant_access_behind(handle, function)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            free_in_order(<uintptr_t>address[0], NULL, &handle.frees, &refused)
    return result


cdef cydriver.CUresult import_counted(PoolHandle* handle, cydriver.CUmemPoolPtrExportData* data,
                                      ImportedPointer** entry, const char** function) noexcept nogil:
    """Import a pointer and count it. ``entry``, a fresh one, is replaced where the address is open already."""
    cdef cydriver.CUmemoryPool pool = handle.pool
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUdeviceptr address = 0
    cdef cydriver.CUresult result
    cdef ImportedPointer* found
    cdef ImportedPointer* ended = NULL
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    pthread_mutex_lock(&_mutex)
    found = _place_of_name(pool, data)[0]
    if found == NULL or not found.shares:
        result = _import(handle, data, &address, function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            if found != NULL and found.address != <uintptr_t>address:
                ended = found  # what was left to others is not mapped any more
                _take_out(ended)
            found = _place_of(<uintptr_t>address)[0]
            if found == NULL:
                found = entry[0]
                found.address = <uintptr_t>address
                _place_of(found.address)[0] = found
                _name(found, pool, data)
            elif not found.shares:  # left to others, who may have freed it: another allocation may be there now
                _unname(found)
                _name(found, pool, data)
        elif found != NULL and result == cydriver.CUresult.CUDA_ERROR_ALREADY_MAPPED:
            result = cydriver.CUresult.CUDA_SUCCESS  # what was left to others is mapped still
        else:
            found = NULL
    if found != NULL:
        entry[0] = found
        found.shares += 1
        if found.shares == 1:
            _live.fetch_add(1)
    pthread_mutex_unlock(&_mutex)
    _end(ended)
    cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    return result


cdef bint _keep_stream(ImportedPointer* entry, StreamHandle* order) noexcept nogil:
    """Remember the stream of a share that is given up. False if there is no memory for it. The mutex is held."""
    cdef StreamHandle** larger
    cdef int place
    for place in range(entry.closer_count):
        if entry.closers[place] == order:
            return True
    larger = <StreamHandle**>realloc(entry.closers, (entry.closer_count + 1) * sizeof(StreamHandle*))
    if larger == NULL:
        return False
    entry.closers = larger
    entry.closers[entry.closer_count] = retain_stream(order)
    entry.closer_count += 1
    return True


cdef ImportedPointer* _take_idle(ImportedPointer* entry) noexcept nogil:
    """Take those streams out of an entry that have nothing to wait for any more. The mutex is held.

    Else an import that stays open would keep every stream that others were ever closed on.
    """
    cdef ImportedPointer* taken = <ImportedPointer*>calloc(1, sizeof(ImportedPointer))
    cdef const char* function = NULL
    cdef int place, left = 0
    cdef bint idle
    if taken == NULL:
        return NULL
    taken.closers = <StreamHandle**>calloc(entry.closer_count, sizeof(StreamHandle*))
    for place in range(entry.closer_count):
        idle = False
        if taken.closers != NULL:
            stream_is_idle(entry.closers[place], &idle, &function)
        if idle:
            taken.closers[taken.closer_count] = entry.closers[place]
            taken.closer_count += 1
        else:
            entry.closers[left] = entry.closers[place]
            left += 1
    entry.closer_count = left
    return taken


cdef cydriver.CUresult _leave_to_others(ImportedPointer* entry, StreamHandle* order, ImportedPointer** done,
                                        const char** function) noexcept nogil:
    """Give up a share that is not the last. As with a free, a stream that is being captured refuses it.

    ``done`` gets streams that are no longer needed; the caller lets them go when the mutex is free.
    """
    cdef cydriver.CUresult result
    cdef bint capturing = False, idle = True
    if order != NULL:
        result = ask_whether_captured(order, &capturing, function)
        if result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED or stream_is_gone(order, result):
            order = NULL  # nothing of it runs any more
        elif result != cydriver.CUresult.CUDA_SUCCESS:
            return result
        if capturing:
            return cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    if order != NULL:
        result = stream_is_idle(order, &idle, function)
        if result != cydriver.CUresult.CUDA_SUCCESS:
            return result
    if not idle:
        if entry.closer_count >= _MANY:
            done[0] = _take_idle(entry)
        if not _keep_stream(entry, order):
            function[0] = b"realloc"
            return cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    entry.shares -= 1
    return cydriver.CUresult.CUDA_SUCCESS


cdef cydriver.CUresult _free_last(ImportedPointer* entry, PendingFrees* frees, const char** function) noexcept nogil:
    """Free behind the streams of all shares, which the entry has by now."""
    cdef StreamHandle all_
    if not entry.closer_count:
        return free_in_order(entry.address, NULL, frees, function)
    if entry.closer_count == 1:
        return free_in_order(entry.address, entry.closers[0], frees, function)
    memset(&all_, 0, sizeof(all_))
    all_.kind, all_.device_id = STREAM_SET, -1
    all_.members, all_.member_count = entry.closers, entry.closer_count
    return free_in_order(entry.address, &all_, frees, function)


cdef bint _keep_streams(ImportedPointer* entry, StreamHandle* order) noexcept nogil:
    """Remember a stream, or all of a set."""
    cdef int member
    if order == NULL:
        return True
    if order.kind != STREAM_SET:
        return _keep_stream(entry, order)
    for member in range(order.member_count):
        if not _keep_stream(entry, order.members[member]):
            return False
    return True


cdef cydriver.CUresult give_up_counted(ImportedPointer* entry, StreamHandle* order, PendingFrees* frees,
                                       const char** function) noexcept nogil:
    """Give up one share; the last one frees, which is noted in ``frees``, and the entry is gone then.

    On failure nothing has changed, and ``function`` names the call that was refused.
    """
    cdef ImportedPointer* done = NULL
    cdef cydriver.CUresult result
    cdef int before
    pthread_mutex_lock(&_mutex)
    if entry.shares > 1:
        result = _leave_to_others(entry, order, &done, function)
    else:
        before = entry.closer_count
        if _keep_streams(entry, order):
            result = _free_last(entry, frees, function)
        else:
            function[0] = b"realloc"
            result = cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
        if result == cydriver.CUresult.CUDA_SUCCESS:
            _live.fetch_sub(1)
            _take_out(entry)
            done = entry
        else:
            # A later attempt may name another stream. The caller holds these: none of them ends here.
            while entry.closer_count > before:
                entry.closer_count -= 1
                release_stream(entry.closers[entry.closer_count])
    pthread_mutex_unlock(&_mutex)
    _end(done)
    return result


cdef void abandon_counted(ImportedPointer* entry) noexcept nogil:
    """Count a share out that cannot be given up. The entry stays for whoever imports the pointer again."""
    pthread_mutex_lock(&_mutex)
    entry.shares -= 1
    if entry.shares == 0:
        _live.fetch_sub(1)
    pthread_mutex_unlock(&_mutex)


cdef void _end(ImportedPointer* entry) noexcept nogil:
    """Let the streams go of what is in no table any more (NULL: nothing), here or on the main thread."""
    global _ended
    cdef int member
    cdef bint kept_by_python = False
    if entry == NULL:
        return
    for member in range(entry.closer_count):
        kept_by_python = kept_by_python or entry.closers[member].owner != NULL
    if not kept_by_python:
        _forget(entry)
        return
    # This may be the reaper, which never takes the GIL.
    pthread_mutex_lock(&_mutex)
    entry.next = _ended
    _ended = entry
    pthread_mutex_unlock(&_mutex)
    Py_AddPendingCall(_forget_ended, NULL)


cdef void _forget(ImportedPointer* entry) noexcept nogil:
    cdef int member
    for member in range(entry.closer_count):
        release_stream(entry.closers[member])
    free(entry.closers)
    free(entry)


cdef int _forget_ended(void* unused) noexcept:
    global _ended
    cdef ImportedPointer* entry
    cdef ImportedPointer* following
    with nogil:
        pthread_mutex_lock(&_mutex)
        entry = _ended
        _ended = NULL
        pthread_mutex_unlock(&_mutex)
    while entry != NULL:
        following = entry.next
        _forget(entry)
        entry = following
    return 0
