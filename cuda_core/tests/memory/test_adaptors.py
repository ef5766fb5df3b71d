# SPDX-License-Identifier: Apache-2.0
"""Resources around resources that come with the package: what they count, limit, log, fail and remember."""

import ctypes
import gc
import logging
import threading

import pytest

from adaptor_kinds import EVERY
from buffer_kinds import BUILT_IN, ENDINGS, FREES, WITH_RESOURCE, end
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAError,
    CUDAWarning,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    LegacyPinnedMemoryResource,
    MemoryResource,
    Ownership,
)
from cuda.core.adaptors import (
    FailingAdaptor,
    LimitAdaptor,
    LoggingAdaptor,
    MemoryResourceAdaptor,
    MemoryStatistics,
    StatisticsAdaptor,
    TrackingAdaptor,
)
from python_resources import Plain, Refusing
from support import (
    GRANULE,
    attempt,
    fill,
    given_back,
    holds,
    in_context,
    race,
    still_allocated,
    warnings_seen,
)

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture(params=EVERY.values(), ids=EVERY)
def around(request):
    return request.param


@pytest.fixture(params=WITH_RESOURCE.values(), ids=WITH_RESOURCE)
def source(request, device):
    return request.param(device)


@pytest.fixture
def inner():
    return Plain()


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ENDINGS)
def test_the_inner_resource_is_asked_once(source, around, how):
    adaptor = around(source.resource)
    box = [source.allocate(resource=adaptor)]
    address, size = box[0].handle, box[0].size
    assert (box[0].memory_resource, box[0].ownership, size) == (adaptor, Ownership.OWNED, source.size)
    fill(address, size, seed=1)
    assert holds(address, size, seed=1)
    end(box, how)
    assert source.frees() in (None, 1)
    assert given_back(address)


def test_where_the_memory_is_comes_from_the_inner_resource(source, around):
    adaptor = around(source.resource)
    for name in ("is_device_accessible", "is_host_accessible", "is_managed"):
        assert getattr(adaptor, name) == getattr(source.resource, name)
    with source.allocate(resource=adaptor) as buffer, source.allocate() as direct:
        assert buffer.is_host_accessible == direct.is_host_accessible
        assert attempt(lambda: adaptor.device_id)[0] == attempt(lambda: source.resource.device_id)[0]
        assert buffer.__dlpack_device__() == direct.__dlpack_device__()


def test_attributes_are_passed_on_and_methods_are_not(device, around):
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions())
    adaptor = around(pool)
    assert adaptor.attributes.used_mem_current == 0
    with adaptor.allocate(4096, stream=device.default_stream):
        assert adaptor.attributes.used_mem_current >= 4096
    with pytest.raises(AttributeError, match=r"the resource inside has it: .inner.close"):
        adaptor.close()
    with pytest.raises(AttributeError, match="no_such_thing"):
        adaptor.no_such_thing  # noqa: B018
    assert not hasattr(adaptor, "_private")
    pool.close()


def test_the_policy_of_the_inner_resource_holds(around, inner):
    inner.release_on_collection = False
    adaptor = around(inner)
    buffer = adaptor.allocate(512)
    address = buffer.handle
    assert not buffer.release_on_collection
    with warnings_seen() as seen:
        del buffer
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert still_allocated(address)
    inner.release_on_collection = True
    del adaptor  # and with it what it had kept
    assert given_back(address)


def test_the_stream_goes_through(device, around, inner):
    one, other = device.create_stream(), device.create_stream()
    adaptor = around(inner)
    adaptor.allocate(512, stream=one).close()
    adaptor.allocate(512, stream=one).close(other)
    assert [int(entry[2].handle) for entry in inner.asked] == [int(one.handle), int(other.handle)]
    inner.asked.clear()
    one.close()
    other.close()


def test_empty_buffers_are_many_and_free_nothing(source, around):
    if source.name == "python":
        pytest.skip("this one leaves an empty allocation to the driver, which refuses it")
    adaptor = around(source.resource)
    empty = [source.allocate(0, resource=adaptor) for _ in range(3)]
    assert [(buffer.size, buffer.ownership) for buffer in empty] == [(0, Ownership.OWNED)] * 3
    with source.allocate(resource=adaptor):
        assert [buffer.close() for buffer in empty] == [CloseResult.DONE] * 3


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", BUILT_IN.values(), ids=BUILT_IN)
def test_a_free_that_the_driver_refuses_loses_nothing(device, kind, around, driver_watch):
    source = kind(device)
    adaptor = around(source.resource)
    buffer = source.allocate(resource=adaptor)
    address = buffer.handle
    with driver_watch.fail(FREES[source.name], result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises((CUDAError, RuntimeError)):
            buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert still_allocated(address)
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_a_deallocate_that_raises_is_asked_again(around):
    resource = Refusing(refusals=1)
    buffer = around(resource).allocate(512)
    address = buffer.handle
    with pytest.raises(LookupError, match="not now"):
        buffer.close()
    assert still_allocated(address)
    buffer.close()
    assert given_back(address)


def test_an_allocation_that_fails_late_leaves_nothing(around, inner, device):
    """The inner resource has allocated when the stream turns out to be closed."""

    class IgnoresTheStream(Plain):
        def allocate(self, size, *, stream=None):
            return super().allocate(size)

    stream = device.create_stream()
    stream.close()
    resource = IgnoresTheStream()
    with pytest.raises(RuntimeError, match="Stream has been closed"):
        around(resource).allocate(512, stream=stream)
    assert (len(resource.asked), resource.held) == (1, {})


@pytest.mark.provokes_refusals
@pytest.mark.parametrize("kind", BUILT_IN.values(), ids=BUILT_IN)
def test_what_the_inner_resource_refuses_is_its_own_error(device, kind, around):
    source = kind(device)
    adaptor = around(source.resource)
    for size in (-1, "many", 1.5):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            source.allocate(size, resource=adaptor)
    buffer = source.allocate(resource=adaptor)
    assert buffer.close() is CloseResult.DONE


def test_addresses_are_used_again_by_other_threads(around):
    """The inner resource gives a freed address to the next who asks, while the one who freed it is still inside."""
    resource = Reusing()
    adaptor = around(resource)

    def work():
        for number in range(200):
            buffer = adaptor.allocate(64)
            if number % 3:
                buffer.close()
            del buffer
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4
    assert resource.used == set()
    assert resource.reused > 100
    assert adaptor._buffers == {}


class Reusing(MemoryResource):
    """Blocks of the host, the one freed last given out next; wrong when it notices something wrong."""

    is_device_accessible = False
    is_host_accessible = True
    device_id = -1

    def __init__(self):
        self.memory = bytearray(64 * 512)
        self.view = memoryview(self.memory)
        first = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.free = [first + 64 * index for index in range(512)]
        self.used = set()
        self.given = set()
        self.reused = 0
        self.lock = threading.RLock()

    def allocate(self, size, *, stream=None):
        with self.lock:
            address = self.free.pop()
            assert address not in self.used
            self.used.add(address)
            self.reused += address in self.given
            self.given.add(address)
        return Buffer.from_handle(address, size, mr=self)

    def deallocate(self, ptr, size, *, stream=None):
        with self.lock:
            self.used.remove(ptr)
            self.free.append(ptr)
        threading.Event().wait(0.0001)  # another thread has it before this call is over


def test_a_collection_in_the_middle_of_everything_hangs_nobody(around):
    """Buffers of the adaptor that are only in cycles are freed by the collector, wherever it runs."""
    resource = Reusing()
    adaptor = around(resource)
    before = gc.get_threshold()
    outcome = []

    def work():
        for _ in range(300):
            cycle = [adaptor.allocate(64)]
            cycle.append(cycle)
        outcome.append("done")

    thread = threading.Thread(target=work, daemon=True)
    gc.set_threshold(1)
    try:
        thread.start()
        thread.join(60)
    finally:
        gc.set_threshold(*before)
    assert outcome == ["done"], "it hangs"
    gc.collect()
    assert resource.used == set()


@pytest.mark.parametrize("first", ["resource", "buffers"])
def test_adaptor_and_buffers_end_in_any_order(around, inner, first, quiet):
    adaptor = around(inner)
    buffers = [adaptor.allocate(512) for _ in range(3)]
    if first == "resource":
        del adaptor
        buffers.clear()
    else:
        buffers.append(buffers)
        del buffers
        del adaptor
    gc.collect()
    assert (len(inner.asked), inner.held) == (3, {})


def test_a_loan_keeps_the_memory(around):
    adaptor = around(LegacyPinnedMemoryResource())
    buffer = adaptor.allocate(512)
    address = buffer.handle
    with memoryview(buffer) as view:
        view[:3] = b"abc"
        assert buffer.close() is CloseResult.LENT
        assert bytes(view[:3]) == b"abc"
    assert given_back(address)


def test_memory_of_another_adaptor_is_refused_and_can_go_back(inner):
    one, other = StatisticsAdaptor(inner), StatisticsAdaptor(inner)
    buffer = one.allocate(512).move_to(other)
    with pytest.raises(ValueError, match="has allocated nothing that is open at 0x"):
        buffer.close()
    assert other.statistics == MemoryStatistics()
    buffer.move_to(one).close()
    assert one.statistics.current_bytes == 0
    assert inner.held == {}


def test_what_is_no_resource_is_refused():
    for kind in (MemoryResourceAdaptor, StatisticsAdaptor, LoggingAdaptor, FailingAdaptor, TrackingAdaptor):
        with pytest.raises(TypeError, match="inner must be a MemoryResource, got int: 7"):
            kind(7)
    with pytest.raises(TypeError, match="inner must be a MemoryResource"):
        LimitAdaptor(7, 7)


# --- statistics --------------------------------------------------------------------------------------------------


def test_statistics_count_bytes_and_allocations(inner):
    adaptor = StatisticsAdaptor(inner)
    first, second = adaptor.allocate(1000), adaptor.allocate(500)
    first.close()
    third = adaptor.allocate(100)
    assert adaptor.statistics == MemoryStatistics(600, 2, 1500, 2, 1600, 3)
    second.close()
    third.close()
    assert adaptor.statistics == MemoryStatistics(0, 0, 1500, 2, 1600, 3)


def test_regions_are_nested(inner):
    adaptor = StatisticsAdaptor(inner)
    kept = adaptor.allocate(1000)
    adaptor.push()
    adaptor.allocate(300).close()
    with adaptor.region() as region:
        adaptor.allocate(500).close()
        assert region.statistics == MemoryStatistics(0, 0, 500, 1, 500, 1)
        assert adaptor.depth == 2
        kept.close()
        assert region.statistics.current_bytes == -1000
    assert region.statistics == MemoryStatistics(-1000, -1, 500, 1, 500, 1)
    assert adaptor.pop() == MemoryStatistics(-1000, -1, 500, 1, 800, 2)
    assert adaptor.statistics == MemoryStatistics(0, 0, 1500, 2, 1800, 3)
    with pytest.raises(RuntimeError, match="no region is open"):
        adaptor.pop()


def test_a_region_that_is_left_by_an_exception_ends(inner):
    adaptor = StatisticsAdaptor(inner)
    with pytest.raises(LookupError):
        with adaptor.region():
            raise LookupError
    assert adaptor.depth == 0


def test_what_is_not_freed_and_not_allocated_is_not_counted():
    resource = Refusing(refusals=1)
    failing = FailingAdaptor(resource)
    adaptor = StatisticsAdaptor(failing)
    with failing.fail_allocation(), pytest.raises(MemoryError):
        adaptor.allocate(512)
    assert adaptor.statistics == MemoryStatistics()
    buffer = adaptor.allocate(512)
    with pytest.raises(LookupError):
        buffer.close()
    assert adaptor.statistics.current_bytes == 512
    buffer.close()
    assert adaptor.statistics == MemoryStatistics(0, 0, 512, 1, 512, 1)


def test_threads_lose_no_count():
    adaptor = StatisticsAdaptor(LegacyPinnedMemoryResource())

    def work():
        for _ in range(100):
            adaptor.allocate(10).close()
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4
    seen = adaptor.statistics
    assert (seen.current_bytes, seen.current_count, seen.total_bytes, seen.total_count) == (0, 0, 4000, 400)
    assert 10 <= seen.peak_bytes <= 40


def test_sizes_are_those_of_the_buffers(resource):
    adaptor = StatisticsAdaptor(resource)
    with adaptor.allocate(100) as buffer:
        assert adaptor.statistics.current_bytes == buffer.size == GRANULE


# --- limit -------------------------------------------------------------------------------------------------------


def test_the_limit_is_never_exceeded(inner):
    adaptor = LimitAdaptor(inner, 1000)
    buffer = adaptor.allocate(600)
    with pytest.raises(MemoryError, match="401 bytes would exceed the limit of 1000 bytes: 600 are in use"):
        adaptor.allocate(401)
    rest = adaptor.allocate(400)
    assert (adaptor.used, adaptor.limit, len(inner.held)) == (1000, 1000, 2)
    buffer.close()
    assert adaptor.used == 400
    rest.close()
    assert adaptor.used == 0


def test_rounding_counts(resource):
    adaptor = LimitAdaptor(resource, GRANULE - 1)
    with pytest.raises(MemoryError, match="would exceed the limit"):
        adaptor.allocate(100)
    assert adaptor.used == 0
    adaptor = LimitAdaptor(resource, GRANULE)
    with adaptor.allocate(100):
        assert adaptor.used == GRANULE
    assert adaptor.used == 0


def test_racing_threads_get_no_more_than_the_limit(inner):
    adaptor = LimitAdaptor(inner, 5 * 64)
    got = []

    def work():
        for _ in range(100):
            try:
                got.append(adaptor.allocate(64))
            except MemoryError:
                return "full"
        return "never full"

    assert race(*[in_context(work)] * 4) == ["full"] * 4
    assert (len(got), adaptor.used) == (5, 320)
    for buffer in got:
        buffer.close()
    assert adaptor.used == 0


def test_an_allocation_that_fails_takes_nothing_from_the_limit():
    failing = FailingAdaptor(LegacyPinnedMemoryResource())
    adaptor = LimitAdaptor(failing, 1000)
    with failing.fail_allocation(), pytest.raises(MemoryError, match="on request"):
        adaptor.allocate(1000)
    adaptor.allocate(1000).close()


def test_a_free_that_fails_gives_nothing_back_to_the_limit():
    adaptor = LimitAdaptor(Refusing(refusals=1), 1000)
    buffer = adaptor.allocate(1000)
    with pytest.raises(LookupError):
        buffer.close()
    assert adaptor.used == 1000
    buffer.close()
    assert adaptor.used == 0


@pytest.mark.parametrize(("limit", "error"), [("1", TypeError), (1.5, TypeError), (-1, ValueError)])
def test_a_limit_that_is_none_is_refused(inner, limit, error):
    with pytest.raises(error, match=f"limit must .*{limit!r}"):
        LimitAdaptor(inner, limit)


# --- logging -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    """A logger, and the list of what it got."""
    logger, got = logging.Logger("test"), []
    handler = logging.Handler()
    handler.emit = lambda record: got.append((record.levelno, record.getMessage()))
    logger.addHandler(handler)
    return logger, got


def test_each_call_is_a_line(device, lines):
    logger, got = lines
    stream = device.create_stream()
    resource = Refusing(refusals=1)
    adaptor = LoggingAdaptor(resource, logger, logging.INFO)
    buffer = adaptor.allocate(512, stream=stream)
    address, at = hex(buffer.handle), hex(int(stream.handle))
    with pytest.raises(LookupError):
        buffer.close()
    buffer.close()
    stream.close()
    with pytest.raises(RuntimeError):
        adaptor.allocate(512, stream=stream)
    assert got == [
        (logging.INFO, f"allocate size=512 address={address} stream={at}"),
        (logging.INFO, f"free size=512 address={address} stream={at}"),
        (
            logging.WARNING,
            f"free size=512 address={address} failed, it is still allocated: LookupError: not now",
        ),
        (logging.INFO, f"free size=512 address={address} stream={at}"),
        (
            logging.WARNING,
            "allocate size=512 stream=0x0 failed: RuntimeError: Stream has been closed",
        ),
    ]
    resource.asked.clear()
    for ptr in list(resource.held):
        resource.give_back(ptr)


def test_in_the_log_an_address_ends_before_it_begins_again(lines):
    logger, got = lines
    adaptor = LoggingAdaptor(Reusing(), logger)

    def work():
        for _ in range(100):
            adaptor.allocate(64).close()
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4
    open_now = set()
    for _, line in got:
        word, _, address, _ = line.split()
        if word == "allocate":
            assert address not in open_now, line
            open_now.add(address)
        else:
            open_now.remove(address)
    assert (open_now, len(got)) == (set(), 800)


def test_the_logger_has_a_name(inner, caplog):
    with caplog.at_level(logging.DEBUG, logger="cuda.core.adaptors"):
        LoggingAdaptor(inner).allocate(512).close()
    assert [record.name for record in caplog.records] == ["cuda.core.adaptors"] * 2
    with pytest.raises(TypeError, match="logger must be a Logger or a name, got int: 3"):
        LoggingAdaptor(inner, 3)
    with pytest.raises(TypeError, match="level must be an integer, got str"):
        LoggingAdaptor(inner, None, "DEBUG")
    inner.asked.clear()


# --- failing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nth", [1, 3])
def test_the_nth_allocation_fails_and_no_other(inner, nth):
    adaptor = FailingAdaptor(inner)
    outcomes = []
    with adaptor.fail_allocation(nth=nth):
        for _ in range(5):
            try:
                outcomes.append(adaptor.allocate(64).close())
            except MemoryError as error:
                outcomes.append(str(error))
    expected = [CloseResult.DONE] * 5
    expected[nth - 1] = f"allocation {nth} fails on request"
    assert outcomes == expected
    assert len(inner.asked) == 4
    adaptor.allocate(64).close()


def test_a_sticky_failure_goes_on_until_the_block_ends(inner):
    adaptor = FailingAdaptor(inner)
    buffer = adaptor.allocate(64)
    with adaptor.fail_free(nth=1, sticky=True, error=OSError("no")):
        for _ in range(3):
            with pytest.raises(OSError, match="no"):
                buffer.close()
    assert buffer.ownership is Ownership.OWNED
    assert inner.asked == []
    buffer.close()


def test_requests_inside_each_other_count_by_themselves(inner):
    adaptor = FailingAdaptor(inner)
    with adaptor.fail_allocation(nth=3, error=OSError):
        adaptor.allocate(64).close()
        with adaptor.fail_allocation(nth=1):
            with pytest.raises(MemoryError):
                adaptor.allocate(64)
        with pytest.raises(OSError):
            adaptor.allocate(64)
    adaptor.allocate(64).close()


def test_a_collection_reports_the_free_that_fails(inner):
    adaptor = FailingAdaptor(inner)
    box = [adaptor.allocate(64)]
    address = box[0].handle
    with warnings_seen() as seen, adaptor.fail_free():
        end(box, "drop")
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert "free 1 fails on request" in str(seen[0].message)
    assert still_allocated(address)
    adaptor._buffers.pop(address).close()


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"nth": 0}, ValueError, "nth must be at least 1, got 0"),
        ({"nth": "2"}, TypeError, "nth must be an integer, got str: '2'"),
        ({"error": "no"}, TypeError, "error must be an exception, got str: 'no'"),
        ({"error": int}, TypeError, "error must be an exception, got int"),
    ],
)
def test_a_request_that_is_none_is_refused(inner, arguments, error, said):
    with pytest.raises(error, match=said):
        FailingAdaptor(inner).fail_allocation(**arguments)
    with pytest.raises(error, match=said):
        FailingAdaptor(inner).fail_free(**arguments)


# --- tracking ----------------------------------------------------------------------------------------------------


def test_open_allocations_say_where_they_were_asked_for(inner):
    adaptor = StatisticsAdaptor(TrackingAdaptor(LoggingAdaptor(inner)))
    tracking = adaptor.inner
    buffer = adaptor.allocate(512)
    (entry,) = tracking.open_allocations()
    assert (entry.serial, entry.address, entry.size) == (1, buffer.handle, 512)
    assert entry.thread == threading.current_thread().name
    innermost = entry.origin[-1]
    assert (innermost.name, innermost.filename) == (
        "test_open_allocations_say_where_they_were_asked_for",
        __file__,
    )
    report = tracking.report()
    assert report.startswith("1 allocations, 512 bytes\nallocation 1: 512 bytes at 0x")
    assert f"{__file__}:{innermost.lineno} in test_open" in report
    buffer.close()
    assert tracking.report() == "nothing is allocated"


@pytest.mark.parametrize("frames", [0, 1, 3])
def test_as_many_frames_as_asked_for_are_kept(inner, frames):
    adaptor = TrackingAdaptor(inner, frames=frames)
    with adaptor.allocate(64):
        assert len(adaptor.open_allocations()[0].origin) == frames


@pytest.mark.parametrize(("frames", "error"), [("8", TypeError), (-1, ValueError)])
def test_frames_that_are_none_are_refused(inner, frames, error):
    with pytest.raises(error, match=f"frames must .*{frames!r}"):
        TrackingAdaptor(inner, frames=frames)


def test_an_entry_is_back_when_the_free_fails():
    adaptor = TrackingAdaptor(Refusing(refusals=1))
    buffer = adaptor.allocate(64)
    (before,) = adaptor.open_allocations()
    with pytest.raises(LookupError):
        buffer.close()
    assert adaptor.open_allocations() == [before]
    buffer.close()
    assert adaptor.open_allocations() == []


def test_the_table_is_never_wrong_under_reuse():
    adaptor = TrackingAdaptor(Reusing(), frames=0)
    wrong = []

    def work():
        for _ in range(100):
            buffer = adaptor.allocate(64)
            mine = [entry for entry in adaptor.open_allocations() if entry.address == buffer.handle]
            wrong.extend([] if len(mine) == 1 else [mine])
            buffer.close()
        return "done"

    assert race(*[in_context(work)] * 4) == ["done"] * 4
    assert wrong == []
    assert adaptor.open_allocations() == []
