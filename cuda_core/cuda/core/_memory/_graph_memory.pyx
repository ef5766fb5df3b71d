# SPDX-License-Identifier: Apache-2.0
"""Memory that a graph allocates: where it stands between capture, launches and the end of the graph.

An address that is allocated in a capture belongs to the graph; a launch puts memory there. Whoever frees outside of the
graph must know that the address is still the graph's: after the graph it may be somebody else's. So a free is tried
only while the graph is there, or where a launch is known to have left memory.
"""

from cuda.bindings cimport cydriver
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset, strcmp

from cuda.core._capture_lock cimport hold_captures_off, let_captures_begin
from cuda.core._driver cimport check, error_for
from cuda.core._memory._graph_place cimport (
    PLACE_FREED,
    PLACE_LEFT,
    CapturedGraph,
    Gone,
    GraphAllocation,
    GraphPlace,
    continues,
    graph_is_gone,
    let_go_of,
    reference_of_capture,
)
from cuda.core._memory._pool_release cimport free_in_order
from cuda.core._pthread cimport pthread_mutex_lock, pthread_mutex_unlock
from cuda.core._stream_handle cimport (
    STREAM_SET,
    StreamHandle,
    enter_stream,
    leave_stream,
    stream_as_seen_here,
    stream_is_gone,
)
from cuda.core._undestroyed cimport end_user_object

cdef extern from *:
    int __atomic_load_n(int*, int) noexcept nogil
    enum:
        __ATOMIC_ACQUIRE


# --- questions ----------------------------------------------------------------------------------------------------


cdef cydriver.CUresult _capture_of(StreamHandle* order, cydriver.CUstreamCaptureStatus* status, uint64_t* id,
                                   cydriver.CUgraph* graph, const char** function) noexcept nogil:
    """Ask which capture a stream is in, with captures held off. A question, never a disturbance of the capture."""
    cdef cydriver.cuuint64_t number = 0
    cdef bint pushed = False
    cdef cydriver.CUresult result = enter_stream(order, &pushed, function)
    status[0] = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuStreamGetCaptureInfo"
    result = cydriver.cuStreamGetCaptureInfo(stream_as_seen_here(order), status, &number, graph, NULL, NULL, NULL)
    leave_stream(pushed)
    id[0] = number
    return result


cdef cydriver.CUresult where_is(StreamHandle* order, CapturedGraph* graph, Where* where,
                                const char** function) noexcept nogil:
    """Ask whether streams are in the capture of a graph. Of several, one that is elsewhere decides, then one inside."""
    cdef cydriver.CUresult result
    hold_captures_off()
    result = _find(order, graph, where, function)
    let_captures_begin()
    return result


cdef cydriver.CUresult _find(StreamHandle* order, CapturedGraph* graph, Where* where,
                             const char** function) noexcept nogil:
    """The same with captures held off."""
    cdef cydriver.CUstreamCaptureStatus status
    cdef cydriver.CUresult result
    cdef Where one
    cdef uint64_t id = 0
    cdef int member
    where[0] = Where.OUTSIDE
    if order == NULL:
        return cydriver.CUresult.CUDA_SUCCESS
    if order.kind == STREAM_SET:
        for member in range(order.member_count):
            result = _find(order.members[member], graph, &one, function)
            if result != cydriver.CUresult.CUDA_SUCCESS:
                return result
            where[0] = max(where[0], one)
        return cydriver.CUresult.CUDA_SUCCESS
    result = _capture_of(order, &status, &id, NULL, function)
    if result == cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
        where[0] = Where.ELSEWHERE  # the legacy stream would wait for a stream that is being captured
        return cydriver.CUresult.CUDA_SUCCESS
    if stream_is_gone(order, result) or result == cydriver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED:
        return cydriver.CUresult.CUDA_SUCCESS
    if result == cydriver.CUresult.CUDA_SUCCESS:
        if status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            where[0] = Where.INSIDE if graph != NULL and id == graph.id else Where.ELSEWHERE
        elif status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_INVALIDATED:
            where[0] = Where.ELSEWHERE
    return result


cdef cydriver.CUresult _ask_whether_there(uintptr_t address, bint* there, const char** function) noexcept nogil:
    """Ask whether a launch has put memory at the address. Before a launch and after a free the driver knows none."""
    cdef cydriver.CUpointer_attribute name = cydriver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    cdef unsigned int kind = 0
    cdef void* value = &kind
    cdef cydriver.CUresult result
    function[0] = b"cuPointerGetAttributes"
    result = cydriver.cuPointerGetAttributes(1, &name, &value, address)
    there[0] = result == cydriver.CUresult.CUDA_SUCCESS and kind != 0
    return result


cdef cydriver.CUresult look_at_all(CapturedGraph* graph, const char** function) noexcept nogil:
    """Before an executable ends: note where it leaves memory, also where others have launched it. With the mutex."""
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef GraphAllocation* allocation = graph.allocations
    while allocation != NULL and result == cydriver.CUresult.CUDA_SUCCESS:
        if allocation.place != PLACE_FREED and not allocation.armed:
            result = _ask_whether_there(allocation.address, &allocation.armed, function)
        allocation = allocation.next
    return result


# --- allocating ---------------------------------------------------------------------------------------------------


cdef cydriver.CUresult _ask_for_graph(StreamHandle* order, uint64_t id, cydriver.CUgraph* graph,
                                      const char** function) noexcept nogil:
    """Ask for the graph of a capture that was seen on a stream, with captures held off. One that is over is refused."""
    cdef cydriver.CUstreamCaptureStatus status
    cdef uint64_t seen = 0
    cdef cydriver.CUresult result = _capture_of(order, &status, &seen, graph, function)
    if result == cydriver.CUresult.CUDA_SUCCESS and (
        status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE or seen != id
    ):
        result = cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    return result


cdef int _watch(CapturedGraph* known, StreamHandle* order) except -1:
    """Let the driver tell when the graph is gone that is being captured on a stream."""
    cdef cydriver.CUuserObject watcher = NULL
    cdef cydriver.CUgraph graph = NULL
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef Gone* gone = <Gone*>calloc(1, sizeof(Gone))
    if gone == NULL:
        raise MemoryError("no memory for a graph")
    gone.count = 2
    with nogil:
        result = cydriver.cuUserObjectCreate(
            &watcher, gone, graph_is_gone, 1, cydriver.CUuserObject_flags.CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
        )
    if result != cydriver.CUresult.CUDA_SUCCESS:
        free(gone)
        check(result, b"cuUserObjectCreate")
    with nogil:
        hold_captures_off()
        result = _ask_for_graph(order, known.id, &graph, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            function = b"cuGraphRetainUserObject"
            result = cydriver.cuGraphRetainUserObject(
                graph, watcher, 1, cydriver.CUuserObjectRetain_flags.CU_GRAPH_USER_OBJECT_MOVE
            )
        let_captures_begin()
        if result != cydriver.CUresult.CUDA_SUCCESS:
            end_user_object(watcher)
            let_go_of(gone)
    check(result, function)
    with nogil:
        pthread_mutex_lock(&known.mutex)
        if known.gone == NULL:
            known.gone = gone
            gone = NULL
        pthread_mutex_unlock(&known.mutex)
        let_go_of(gone)  # another thread came first
    return 0


cdef GraphPlace allocate_in_capture(StreamHandle* order, size_t size):
    """Put an allocation into the graph that is being captured on a stream.

    Raises
    ------
    RuntimeError
        If the stream is not being captured.
    CUDAError
        If the driver refuses, or the capture is broken. The capture is as it was.
    """
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUgraph graph = NULL
    cdef cydriver.CUresult result
    cdef const char* function = NULL
    cdef CapturedGraph* known
    cdef GraphAllocation* allocation
    cdef GraphPlace place
    cdef bint pushed = False, watched
    cdef uint64_t id = 0
    with nogil:
        hold_captures_off()
        result = _capture_of(order, &status, &id, NULL, &function)
        let_captures_begin()
    check(result, function)
    if status == cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE:
        raise RuntimeError(
            "GraphMemoryResource cannot perform memory operations on a non-capturing stream: begin building first, or "
            "allocate from a DeviceMemoryResource"
        )
    if status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
        raise error_for(cydriver.CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, b"cuStreamGetCaptureInfo")
    # Before the call: nothing may fail between the driver's answer and the note of it.
    place = GraphPlace.__new__(GraphPlace)
    place.of = reference_of_capture(id)
    known = place.of.graph
    with nogil:
        pthread_mutex_lock(&known.mutex)
        watched = known.gone != NULL
        pthread_mutex_unlock(&known.mutex)
    if not watched:
        _watch(known, order)
    allocation = <GraphAllocation*>calloc(1, sizeof(GraphAllocation))
    if allocation == NULL:
        raise MemoryError("no memory for an allocation of a graph")
    with nogil:
        result = enter_stream(order, &pushed, &function)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            hold_captures_off()
            # Behind the capture it would be an allocation that no graph has.
            result = _ask_for_graph(order, known.id, &graph, &function)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                # The call counts among those that another capture, anywhere in the process, forbids.
                function = b"cuThreadExchangeStreamCaptureMode"
                result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            if result == cydriver.CUresult.CUDA_SUCCESS:
                function = b"cuMemAllocAsync"
                result = cydriver.cuMemAllocAsync(
                    <cydriver.CUdeviceptr*>&allocation.address, size, stream_as_seen_here(order)
                )
                cydriver.cuThreadExchangeStreamCaptureMode(&mode)
            let_captures_begin()
            leave_stream(pushed)
        if result == cydriver.CUresult.CUDA_SUCCESS:
            pthread_mutex_lock(&known.mutex)
            allocation.next = known.allocations
            known.allocations = allocation
            pthread_mutex_unlock(&known.mutex)
        else:
            free(allocation)
    check(result, function)
    place.allocation = allocation
    return place


# --- freeing ------------------------------------------------------------------------------------------------------


cdef struct Dependencies:
    cydriver.CUgraph graph
    cydriver.CUgraphNode* nodes
    size_t count


cdef cydriver.CUresult _add_dependencies(StreamHandle* order, CapturedGraph* graph, Dependencies* them,
                                         const char** function) noexcept nogil:
    """Add what the next node on a stream would come behind. Work outside of the capture cannot have used the memory."""
    cdef cydriver.CUstreamCaptureStatus status = cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    cdef const cydriver.CUgraphNode* nodes = NULL
    cdef const cydriver.CUgraphEdgeData* edges = NULL  # not asked for, edges with data would be refused
    cdef cydriver.CUgraphNode* longer
    cdef cydriver.CUgraph handle = NULL
    cdef cydriver.cuuint64_t id = 0
    cdef bint pushed = False, known
    cdef size_t count = 0, index, other
    cdef cydriver.CUresult result = enter_stream(order, &pushed, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuStreamGetCaptureInfo"
    result = cydriver.cuStreamGetCaptureInfo(
        stream_as_seen_here(order), &status, &id, &handle, &nodes, &edges, &count
    )
    leave_stream(pushed)
    if stream_is_gone(order, result):
        return cydriver.CUresult.CUDA_SUCCESS
    if (
        result != cydriver.CUresult.CUDA_SUCCESS
        or status != cydriver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE
        or id != graph.id
    ):
        return result
    them.graph = handle
    longer = <cydriver.CUgraphNode*>realloc(them.nodes, (them.count + count + 1) * sizeof(cydriver.CUgraphNode))
    if longer == NULL:
        function[0] = b"realloc"
        return cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    them.nodes = longer
    for index in range(count):  # the driver's list is good until its next call
        known = False
        for other in range(them.count):
            known = known or longer[other] == nodes[index]
        if not known:
            longer[them.count] = nodes[index]
            them.count += 1
    return result


cdef cydriver.CUresult _add_free_node(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                      const char** function) noexcept nogil:
    """Make a free node that no stream goes on from, behind what is on the streams now."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef cydriver.CUgraphNode node = NULL
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    cdef Dependencies behind
    cdef int member
    memset(&behind, 0, sizeof(behind))
    if order.kind == STREAM_SET:
        for member in range(order.member_count):
            if result == cydriver.CUresult.CUDA_SUCCESS:
                result = _add_dependencies(order.members[member], graph, &behind, function)
    else:
        result = _add_dependencies(order, graph, &behind, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuThreadExchangeStreamCaptureMode"
        result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuGraphAddMemFreeNode"
        result = cydriver.cuGraphAddMemFreeNode(&node, behind.graph, behind.nodes, behind.count, allocation.address)
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    free(behind.nodes)
    return result


cdef cydriver.CUresult _capture_free(GraphAllocation* allocation, StreamHandle* order,
                                     const char** function) noexcept nogil:
    """Make a free node that the stream goes on from, so that later allocations there can use the memory."""
    cdef cydriver.CUstreamCaptureMode mode = cydriver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    cdef bint pushed = False
    cdef cydriver.CUresult result = enter_stream(order, &pushed, function)
    if result != cydriver.CUresult.CUDA_SUCCESS:
        return result
    function[0] = b"cuThreadExchangeStreamCaptureMode"
    result = cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        function[0] = b"cuMemFreeAsync"
        result = cydriver.cuMemFreeAsync(allocation.address, stream_as_seen_here(order))
        cydriver.cuThreadExchangeStreamCaptureMode(&mode)
    leave_stream(pushed)
    return result


cdef cydriver.CUresult free_inside(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                   Where* where, const char** function) noexcept nogil:
    """Make a free node behind what is on the streams now, in the capture that has made the allocation.

    ``where`` tells where the streams are by now. Outside of that capture nothing is done: a free there would be none of
    the graph's.

    Another stream may go on already from where a stream is. A node more there would leave the capture unjoined, so a
    stream takes up the node only where it is known that it is joined later.
    """
    cdef cydriver.CUresult result
    cdef bint goes_on = order.kind != STREAM_SET and continues(graph, order.stream)
    hold_captures_off()
    result = _find(order, graph, where, function)
    if result == cydriver.CUresult.CUDA_SUCCESS and where[0] == Where.INSIDE:
        if goes_on:
            result = _capture_free(allocation, order, function)
        else:
            result = _add_free_node(allocation, graph, order, function)
    let_captures_begin()
    if result == cydriver.CUresult.CUDA_SUCCESS and where[0] == Where.INSIDE:
        pthread_mutex_lock(&graph.mutex)
        allocation.place = PLACE_FREED
        pthread_mutex_unlock(&graph.mutex)
    return result


cdef cydriver.CUresult _free(GraphAllocation* allocation, StreamHandle* order, const char** function) noexcept nogil:
    """Free what a launch has allocated. That there is nothing is no failure. With the mutex."""
    cdef cydriver.CUresult result
    if not allocation.armed:  # but others may have launched
        result = _ask_whether_there(allocation.address, &allocation.armed, function)
        if not allocation.armed:
            return result
    result = free_in_order(allocation.address, order, NULL, function)
    if result == cydriver.CUresult.CUDA_ERROR_INVALID_VALUE and (
        strcmp(function[0], b"cuMemFreeAsync") == 0 or strcmp(function[0], b"cuMemFree") == 0
    ):
        result = cydriver.CUresult.CUDA_SUCCESS  # others have freed it
    if result == cydriver.CUresult.CUDA_SUCCESS:
        allocation.armed = False
    return result


cdef cydriver.CUresult _free_behind_launch(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                           const char** function) noexcept nogil:
    """Free behind these streams and behind the last launch, which has used the memory. With the mutex."""
    cdef StreamHandle* launched = graph.launched_on
    cdef StreamHandle both
    cdef cydriver.CUresult result
    cdef int count
    if launched == NULL or (order != NULL and launched.stream == order.stream and launched.context == order.context):
        return _free(allocation, order, function)
    if order == NULL:
        return _free(allocation, launched, function)
    count = order.member_count if order.kind == STREAM_SET else 1
    memset(&both, 0, sizeof(both))  # nobody keeps it: no count
    both.kind = STREAM_SET
    both.member_count = count + 1
    both.members = <StreamHandle**>calloc(count + 1, sizeof(StreamHandle*))
    if both.members == NULL:
        function[0] = b"calloc"
        return cydriver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    if order.kind == STREAM_SET:
        memcpy(both.members, order.members, count * sizeof(StreamHandle*))
    else:
        both.members[0] = order
    both.members[count] = launched
    result = _free(allocation, &both, function)
    free(both.members)
    return result


cdef cydriver.CUresult free_outside(GraphAllocation* allocation, CapturedGraph* graph, StreamHandle* order,
                                    bint* unknown, const char** function) noexcept nogil:
    """Free what a launch has allocated, and leave to the graph what later launches allocate.

    ``unknown``: the graph was others', it is gone, and what is at the address now may be somebody else's. Nothing was
    freed then.
    """
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS
    unknown[0] = False
    pthread_mutex_lock(&graph.mutex)
    if graph.ended:
        if allocation.armed:
            result = _free_behind_launch(allocation, graph, order, function)
    elif graph.gone != NULL and __atomic_load_n(&graph.gone.gone, __ATOMIC_ACQUIRE):
        result = _ask_whether_there(allocation.address, unknown, function)
    else:
        result = _free_behind_launch(allocation, graph, order, function)
    if result == cydriver.CUresult.CUDA_SUCCESS:
        allocation.place = PLACE_LEFT
    pthread_mutex_unlock(&graph.mutex)
    return result


cdef cydriver.CUresult free_left(CapturedGraph* graph, const char** function) noexcept nogil:
    """Free behind the last launch what it has allocated and no buffer owns. With the mutex.

    Of several failures the last one is returned.
    """
    cdef cydriver.CUresult result = cydriver.CUresult.CUDA_SUCCESS, one
    cdef const char* where = NULL
    cdef GraphAllocation* allocation = graph.allocations
    while allocation != NULL:
        if allocation.place == PLACE_LEFT and allocation.armed:
            one = _free(allocation, graph.launched_on, &where)
            if one != cydriver.CUresult.CUDA_SUCCESS:
                result, function[0] = one, where
        allocation = allocation.next
    return result
