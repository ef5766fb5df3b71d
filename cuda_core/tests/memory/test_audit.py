# SPDX-License-Identifier: Apache-2.0
"""The audit: every allocation with where it was made, what became of it, and what was never returned."""

import ctypes
import gc
import json
import os
import re
import threading

import pytest

from buffer_kinds import SOURCES
from cuda.core import Buffer, LegacyPinnedMemoryResource, OwnershipError, VirtualMemoryResource, audit
from cuda.core._memory._queue import drain
from cuda.core.audit import _recorder, _recording
from held_work import Gate
from python_resources import Plain, Refusing
from support import GRANULE, blocked, child_output, in_context, race

HERE = os.path.abspath(__file__)


@pytest.fixture(params=sorted(SOURCES))
def source(request, device):
    return SOURCES[request.param](device)


@pytest.fixture
def pinned(device):
    return LegacyPinnedMemoryResource()


@pytest.fixture(autouse=True)
def nothing_runs_behind():
    yield
    assert not _recorder.is_installed()


def line_of(text):
    """Return the number of the one line of this file that ends with a comment."""
    with open(HERE, encoding="utf-8") as file:
        (number,) = [n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}")]
    return number


def number_of(thing):
    return int(repr(thing).split("#")[1].split()[0])


def the_one(report, number):
    (one,) = [one for one in report.allocations if one.serial == number]
    return one


def steps_of(one):
    return [step.text for step in one.steps]


# --- lives -------------------------------------------------------------------------------------------------------


def test_a_life_from_allocation_to_close(source):
    with audit.record() as recording:
        buffer = source.allocate()  # allocated here
        number, address, size = number_of(buffer), buffer.handle, buffer.size
        buffer.close()
    report = recording.report
    one = the_one(report, number)
    assert (one.address, one.size, one.ending, one.failures, one.loans) == (address, size, "returned", 0, 0)
    (here,) = [frame for frame in one.own_origin if frame.file == HERE]
    assert here.line == line_of("allocated here")
    assert here.function.endswith("test_a_life_from_allocation_to_close")
    assert 0 <= one.begun < one.ended <= report.seconds
    assert [state for _, state in one.states] == ["OWNED"]
    assert steps_of(one) == ["allocated", "close: release begins", "returned"]
    assert {step.thread for step in one.steps} == {"MainThread"}
    times = [step.time for step in one.steps]
    assert times == sorted(times)
    resource = report.resources[one.resource]
    if source.resource is not None:
        assert resource.resource == type(source.resource).__name__
        if source.built_in:
            assert resource.device_id == (0 if source.has_device else -1)
    assert report.is_clean


def keep(resource, kept):
    kept.append(resource.allocate(4096))  # it leaks here


def test_a_leak_is_found_with_its_line(pinned):
    kept = []
    with audit.record() as recording:
        for _ in range(3):
            keep(pinned, kept)
        pinned.allocate(64).close()
    report = recording.report
    assert [one.serial for one in report.leaked] == [number_of(buffer) for buffer in kept]
    assert {(one.ending, one.size) for one in report.leaked} == {("open", 4096)}
    assert not report.is_clean
    for one in report.leaked:
        assert (one.own_origin[0].line, one.own_origin[0].function) == (line_of("it leaks here"), "keep")
        assert one.own_origin[1].function.endswith("test_a_leak_is_found_with_its_line")
    text = report.to_text()
    assert "LEAKED: never returned: 3 allocations, 12 KiB" in text
    assert f"3 x 4 KiB of LegacyPinnedMemoryResource, host; #{number_of(kept[0])}" in text
    assert text.count(f"{HERE}:{line_of('it leaks here')} in keep") == 1  # one place, said once
    for buffer in kept:
        buffer.close()


def test_what_was_detached_and_never_adopted(pinned):
    with audit.record() as recording:
        buffer = pinned.allocate(4096)
        before = number_of(buffer)
        allocation = buffer.detach()  # detached here
        adopted = Buffer.adopt(pinned.allocate(64).detach())
        given = pinned.allocate(128).detach()
        given.handed_over()
        adopted.close()
    report = recording.report
    (one,) = report.detached
    assert report.leaked == ()
    assert (one.serial, one.size, one.ending, one.source) == (number_of(allocation), 4096, "open", before)
    assert one.own_origin[0].line == line_of("detached here")
    assert (the_one(report, before).ending, the_one(report, before).taker) == ("detached", one.serial)
    assert sorted(a.ending for a in report.allocations) == sorted(
        ["detached", "open", "detached", "adopted", "returned", "detached", "handed over"]
    )
    assert (report.count, report.size) == (3, 4096 + 64 + 128)  # handing over allocates nothing
    assert "DETACHED and never adopted" in report.to_text()
    Buffer.adopt(allocation).close()
    pinned.deallocate(given_address(one=report, size=128), 128)


def given_address(one, size):
    return next(it.address for it in one.allocations if it.ending == "handed over" and it.size == size)


def test_an_allocation_that_is_dropped_is_gone(pinned):
    with audit.record() as recording:
        allocation = pinned.allocate(64).detach()
        address = allocation.handle
        with pytest.warns(match="was detached, and dropped"):
            del allocation
    (one,) = recording.report.detached
    assert (one.ending, one.ended, one.states[-1][1]) == ("gone", None, "GONE")
    pinned.deallocate(address, 64)


def test_what_a_collection_has_returned(source):
    with audit.record() as recording:
        closed = source.allocate()
        number = number_of(source.allocate())  # nobody closes this
        gc.collect()
        drain(20)
        closed.close()
    report = recording.report
    (one,) = report.collected
    assert one.serial == number
    assert line_of("nobody closes this") in {frame.line for frame in one.own_origin if frame.file == HERE}
    assert "a collection: release begins" in steps_of(one)
    assert report.is_clean  # it is back, all the same
    assert "COLLECTED: returned by a collection" in report.to_text()


def test_leaving_with_is_no_collection(source):
    with audit.record() as recording:
        with source.allocate() as buffer:
            number = number_of(buffer)
    assert the_one(recording.report, number).ending == "returned"
    assert recording.report.collected == ()


def test_a_grow_in_place_and_by_moving(resource):
    with audit.record() as recording:
        first = resource.allocate(GRANULE)
        with blocked(first):
            second = resource.modify_allocation(first, 3 * GRANULE)
        numbers = number_of(first), number_of(second)
        second.close()
    report = recording.report
    one, other = (the_one(report, number) for number in numbers)
    assert (one.ending, one.taker, one.size) == ("grown", numbers[1], GRANULE)
    assert (other.source, other.size, other.ending) == (numbers[0], 3 * GRANULE, "returned")
    assert one.ended == other.begun  # never both, never none
    assert (report.count, report.size, report.peak) == (1, 3 * GRANULE, 3 * GRANULE)


def test_moving_to_another_resource(pinned):
    other = LegacyPinnedMemoryResource()
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        moved = buffer.move_to(other)
        numbers = number_of(buffer), number_of(moved)
        moved.close()
    assert [the_one(recording.report, number).ending for number in numbers] == ["moved", "returned"]
    assert recording.report.peak == 64


def test_loans(pinned):
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        number = number_of(buffer)
        view, other = memoryview(buffer), memoryview(buffer)
        buffer.close()
        view.release()
        other.release()
        drain(20)  # the last loan waits for nothing
    one = the_one(recording.report, number)
    assert [state for _, state in one.states][:2] == ["OWNED", "LENT"]
    assert steps_of(one)[:6] == [
        "allocated",
        "loan begins",
        "loan begins",
        "close while lent: passes to the loans",
        "loan ends",
        "the last loan ends: release begins",
    ]
    assert (one.ending, one.loans) == ("returned", 0)


def test_loans_on_a_range_outlive_its_buffer(resource):
    with audit.record() as recording:
        buffer = resource.allocate(GRANULE)
        number = number_of(buffer)
        part = buffer[:64]
        buffer.close()
        part.close()
        drain(20)
    one = the_one(recording.report, number)
    assert (one.ending, [state for _, state in one.states][:2]) == ("returned", ["OWNED", "LENT"])


def test_a_loan_that_is_open_at_the_end_holds_a_leak(pinned):
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        view = memoryview(buffer)
        buffer.close()
    (one,) = recording.report.leaked
    assert (one.ending, one.loans, one.states[-1][1]) == ("open", 1, "LENT")
    assert "; closed, held by 1 loan\n" in recording.report.to_text()
    assert "; open" not in recording.report.to_text()
    view.release()


def test_a_release_that_fails_and_is_made_again(device):
    with audit.record() as recording:
        buffer = Refusing(2).allocate(64)
        number = number_of(buffer)
        for _ in range(2):
            with pytest.raises(LookupError):
                buffer.close()
        buffer.close()
    report = recording.report
    (one,) = report.failed
    assert (one.serial, one.failures, one.ending) == (number, 2, "returned")
    assert [state for _, state in one.states] == ["OWNED", "FAILED", "FAILED"]
    assert steps_of(one).count("the release failed") == 2
    assert "FAILED: an attempt" in report.to_text()


def test_a_buffer_that_is_dropped_after_its_close_failed(device):
    resource = Refusing(1)
    with audit.record() as recording:
        buffer = resource.allocate(64)
        number = number_of(buffer)
        with pytest.raises(LookupError):
            buffer.close()
        with pytest.warns(match="dropped after a close that failed"):
            del buffer
    (one,) = recording.report.leaked
    assert (one.serial, one.ending, one.failures) == (number, "gone", 1)
    for address in list(resource.held):
        resource.give_back(address)


def test_a_refused_transfer_changes_nothing(pinned):
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        number = number_of(buffer)
        view = memoryview(buffer)
        with pytest.raises(BufferError):
            buffer.detach()
        view.release()
        buffer.close()
        with pytest.raises(OwnershipError):
            buffer.detach()
    assert steps_of(the_one(recording.report, number)) == [
        "allocated",
        "loan begins",
        "loan ends",
        "close: release begins",
        "returned",
    ]


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_grow_that_fails_leaves_the_life_as_it_was(resource, driver_watch):
    with audit.record() as recording:
        buffer = resource.allocate(GRANULE)
        number = number_of(buffer)
        with driver_watch.fail("cuMemMap", sticky=True), pytest.raises(Exception, match="cuMemMap"):
            resource.modify_allocation(buffer, 2 * GRANULE)
        buffer.close()
    report = recording.report
    assert "the transfer was given up" in steps_of(the_one(report, number))
    assert (the_one(report, number).ending, report.peak, report.resources[0].live) == ("returned", GRANULE, 0)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_memory_that_is_lost(pinned, driver_watch):
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        number, address = number_of(buffer), buffer.handle
        with (
            driver_watch.fail("cuMemFreeHost", result="CUDA_ERROR_CONTEXT_IS_DESTROYED"),
            pytest.raises(Exception, match="CONTEXT_IS_DESTROYED"),
        ):
            buffer.close()
    (one,) = recording.report.lost
    assert (one.serial, one.ending) == (number, "lost")
    assert not recording.report.is_clean
    assert "LOST with their context" in recording.report.to_text()
    pinned.deallocate(address, 64)


def test_the_queue(device, stream):
    with audit.record() as recording:
        buffer = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
        number = number_of(buffer)
        with Gate(stream):
            assert buffer.close(wait=False).name == "QUEUED"
        assert drain(20)
    one = the_one(recording.report, number)
    assert (one.ending, [state for _, state in one.states]) == ("returned", ["OWNED", "QUEUED"])
    assert one.steps[-1].text.startswith("returned by the queue")
    assert one.steps[-1].thread == "release queue"


def test_what_is_queued_at_the_end(device, stream):
    with Gate(stream):
        with audit.record() as recording:
            buffer = VirtualMemoryResource(device).allocate(GRANULE, stream=stream)
            number = number_of(buffer)
            buffer.close(wait=False)
    assert drain(20)
    (one,) = recording.report.waiting
    assert (one.serial, one.ending, recording.report.leaked) == (number, "queued", ())


def test_a_from_handle_that_is_refused_leaves_no_life(resource):
    buffer = resource.allocate(GRANULE)
    with audit.record() as recording:
        with pytest.raises(OwnershipError):
            Buffer.from_handle(buffer.handle, GRANULE, mr=resource)
    assert recording.report.count == 0
    assert [one.serial for one in recording.report.allocations] == [number_of(buffer)]
    buffer.close()


def test_borrowed_buffers_are_no_allocations(device):
    memory = ctypes.create_string_buffer(64)
    with audit.record() as recording:
        Buffer.from_handle(ctypes.addressof(memory), 64, owner=memory).close()
    assert recording.report.allocations == ()
    assert "nothing leaked" in recording.report.to_text()


class CountsReferences(Plain):
    """Frees with the last of several owners of an address."""

    def __init__(self):
        super().__init__()
        self.owners = {}

    def allocate(self, size, *, stream=None):
        buffer = super().allocate(size, stream=stream)
        self.owners[buffer.handle] = 1
        return buffer

    def again(self, buffer):
        self.owners[buffer.handle] += 1
        return Buffer.from_handle(buffer.handle, buffer.size, mr=self)  # the second owner

    def deallocate(self, ptr, size, *, stream=None):
        self.owners[ptr] -= 1
        if not self.owners[ptr]:
            super().deallocate(ptr, size, stream=stream)


def test_auth_07_two_owners_of_one_address_are_shown(device):
    resource = CountsReferences()
    with audit.record() as recording:
        first = resource.allocate(64)
        second = resource.again(first)
        numbers = number_of(first), number_of(second)
        first.close()
        second.close()
        resource.allocate(64).close()  # often the same address, and later
        Buffer.adopt(resource.allocate(64).detach()).close()
    report = recording.report
    assert [(one.serial, other.serial) for one, other in report.shared] == [numbers]
    assert report.to_dict()["shared"] == [list(numbers)]
    text = report.to_text()
    assert f"#{numbers[0]} and #{numbers[1]} at {report.shared[0][0].address:#x} of CountsReferences" in text
    assert f"{HERE}:{line_of('the second owner')} in CountsReferences.again" in text or ".again" in text
    assert report.is_clean


# --- what was there before, and other recordings ----------------------------------------------------------------------


def test_what_was_there_before(pinned):
    old, older = pinned.allocate(64), pinned.allocate(128)
    with audit.record() as recording:
        older.close()
    report = recording.report
    one, other = the_one(report, number_of(old)), the_one(report, number_of(older))
    assert (one.begun, one.origin, one.ending) == (None, (), "open")
    assert (other.begun, other.ending) == (None, "returned")
    assert (report.count, report.size, report.peak) == (0, 0, 192)
    assert "where it was allocated is not known" in report.to_text()
    old.close()


def test_two_recordings_overlap(pinned):
    first, second = audit.record(), audit.record()
    first.start()
    a = pinned.allocate(64)
    second.start()
    b = pinned.allocate(64)
    first.stop()
    c = pinned.allocate(64)
    a.close()
    second.stop()
    numbers = [number_of(buffer) for buffer in (a, b, c)]
    assert [one.serial for one in first.report.leaked] == numbers[:2]
    assert [one.serial for one in second.report.leaked] == numbers[1:]
    assert second.report.count == 2
    b.close()
    c.close()


def test_a_recording_is_made_once(pinned):
    recording = audit.record()
    with pytest.raises(RuntimeError, match="has not ended"):
        recording.report  # noqa: B018
    with recording:
        with pytest.raises(RuntimeError, match="begun before"):
            recording.start()
        with pytest.raises(RuntimeError, match="has not ended"):
            recording.report  # noqa: B018
    recording.stop()
    assert recording.report is recording.report
    with pytest.raises(RuntimeError, match="begun before"):
        recording.start()


def test_an_exception_ends_it(pinned):
    recording = audit.record()
    with pytest.raises(ZeroDivisionError):
        with recording:
            1 / 0  # noqa: B018
    assert recording.report.count == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"depth": 0}, ValueError, "depth must be at least 1, got 0"),
        ({"depth": 1.5}, TypeError, "depth must be an integer, got float: 1.5"),
        ({"limit": -3}, ValueError, "limit must be at least 1, got -3"),
        ({"limit": True}, TypeError, "limit must be an integer, got bool: True"),
        ({"html": "/no/such/folder/page.html"}, ValueError, "there is no folder '/no/such/folder'"),
        ({"json": "/"}, ValueError, "json='/' is a folder"),
        ({"text": 3}, TypeError, "int"),
    ],
)
def test_odd_arguments(arguments, error, text):
    with pytest.raises(error, match=re.escape(text)):
        audit.record(**arguments)


# --- bounds --------------------------------------------------------------------------------------------------------


def test_ended_lives_make_room_and_are_counted(pinned):
    kept = []
    with audit.record(limit=5) as recording:
        for number in range(40):
            buffer = pinned.allocate(64)
            kept.append(buffer) if number % 10 == 0 else buffer.close()
    report = recording.report
    assert (report.count, report.size, report.left_out) == (40, 40 * 64, 36 - 5)
    assert len(report.allocations) == 5 + 4
    assert [one.serial for one in report.leaked] == [number_of(buffer) for buffer in kept]
    assert "Left out to bound the memory: 31 allocations" in report.to_text()
    for buffer in kept:
        buffer.close()


def test_more_happens_than_the_table_holds(pinned):
    """The table is read while it fills, at the making of records; so nothing is lost where allocations are made."""
    rounds = _recorder.CAPACITY  # four events each
    with audit.record() as recording:
        for _ in range(rounds):
            pinned.allocate(64).close()
    report = recording.report
    assert (report.count, report.lost_events, report.lost_loans) == (rounds, 0, 0)
    assert report.is_clean


def test_loans_that_find_no_room_are_counted_and_hide_nothing(pinned):
    with audit.record() as recording:
        buffer = pinned.allocate(64)
        for _ in range(_recorder.CAPACITY):
            memoryview(buffer).release()  # no record is made, so nobody reads the table
        buffer.close()
    report = recording.report
    (one,) = report.allocations
    assert report.lost_loans > 0
    assert report.lost_events == 0
    assert (one.ending, one.steps[-1].text) == ("returned", "returned")
    assert one.steps_left_out > 0
    assert len(one.steps) <= 210
    assert "were not recorded" in report.to_text()


def test_the_depth_of_a_stack(pinned):
    def deep(n):
        return pinned.allocate(64) if n == 0 else deep(n - 1)

    with audit.record(depth=3) as recording:
        deep(10).close()
    (one,) = recording.report.allocations
    assert [frame.function.rpartition(".")[2] for frame in one.origin] == ["deep"] * 3


# --- threads, fork ----------------------------------------------------------------------------------------------------


def test_threads_are_named_also_when_they_have_ended(pinned):
    numbers = {}

    @in_context
    def work():
        with pinned.allocate(64) as buffer:
            numbers[threading.current_thread().name] = number_of(buffer)

    with audit.record() as recording:
        threads = [threading.Thread(target=work, name=f"worker {n}") for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(numbers) == [f"worker {n}" for n in range(4)]
    for name, number in numbers.items():
        one = the_one(recording.report, number)
        assert one.thread == name
        assert {step.thread for step in one.steps} == {name}


def test_recording_while_threads_allocate(pinned):
    """Recordings begin and end in the middle of everything; each is whole."""
    stop = threading.Event()
    reports = []

    @in_context
    def churn():
        while not stop.is_set():
            with pinned.allocate(64) as buffer, memoryview(buffer):
                pass
            Buffer.adopt(pinned.allocate(32).detach()).close()

    @in_context
    def look():
        try:
            for _ in range(15):
                with audit.record() as recording:
                    for _ in range(50):
                        pinned.allocate(16).close()
                reports.append(recording.report)
        finally:
            stop.set()

    assert race(churn, churn, look) == [None, None, None]
    assert len(reports) == 15
    for report in reports:
        assert report.lost_events == 0
        assert not [one for one in report.allocations if one.ending in ("not known", "gone", "lost")]
        in_hand = len(report.leaked) + len(report.detached)  # by the two others at that moment
        assert in_hand <= 2 * 2


def test_a_finalizer_that_allocates_while_the_table_is_read(pinned):
    class Allocates:
        def __init__(self):
            self.me = self

        def __del__(self):
            pinned.allocate(16).close()

    with audit.record() as recording:
        for _ in range(200):
            Allocates()
            pinned.allocate(64).close()
        gc.collect()
        _recording._read_table()
    assert recording.report.lost_events == 0
    assert recording.report.count == 400
    assert {one.ending for one in recording.report.allocations} == {"returned"}


FORK = """
import os, warnings
warnings.filterwarnings("ignore", category=DeprecationWarning)  # newer Pythons warn of threads, and drivers have some
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource, audit
from cuda.core.audit import _recorder
Device(0).set_current()
with audit.record() as recording:
    kept = LegacyPinnedMemoryResource().allocate(64)
    pid = os.fork()
    if not pid:
        assert not _recorder.is_installed()
        Buffer.from_handle(4096, 64, owner=kept).close()
        recording.stop()
        try:
            recording.report
        except RuntimeError as error:
            print(error, flush=True)
        with audit.record() as own:
            pass
        print(own.report.count, flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    kept.close()
print(recording.report.count, recording.report.is_clean)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_records_nothing():
    assert child_output(FORK).splitlines() == [
        "the recording is of the process that this one was forked from",
        "0",
        "1 True",
    ]


# --- what it writes ---------------------------------------------------------------------------------------------------


def test_the_files(pinned, tmp_path):
    names = {kind: tmp_path / f"memory-%p.{kind}" for kind in ("text", "json", "html")}
    with audit.record(**names) as recording:
        kept = pinned.allocate(64)
    written = {kind: tmp_path / f"memory-{os.getpid()}.{kind}" for kind in names}
    assert written["text"].read_text() == str(recording.report)
    whole = json.loads(written["json"].read_text())
    assert whole == json.loads(json.dumps(recording.report.to_dict()))
    assert whole["leaked"] == [number_of(kept)]
    assert whole["allocations"][0]["origin"][0]["file"] == HERE
    assert written["html"].read_text() == recording.report.to_html()
    kept.close()


def page_data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def test_the_page_needs_nothing_else(pinned):
    with audit.record() as recording:
        pinned.allocate(64).close()
    page = recording.report.to_html()
    assert "@@" not in page
    assert not re.search(r"(?:src|href)=|@import|url\(|fetch\(|XMLHttp|https?://", page)
    assert "default-src 'none'" in page
    data = page_data(page)
    assert (data["count"], len(data["lives"]), data["size"]) == (1, 1, 64)
    assert data["files"][data["stacks"][data["lives"][0][8]][0][0]] == HERE


def test_the_page_counts_memory_once_that_went_from_owner_to_owner(pinned):
    with audit.record() as recording:
        Buffer.adopt(pinned.allocate(64).detach()).close()
    page = recording.report.to_html()
    data = page_data(page)
    assert (data["count"], len(data["lives"])) == (1, 3)
    assert re.findall(r"many\((\w+)\([^)]*\), \"allocation\"\)", page) == ["countOf", "countOf"]
    assert '"buffer")' not in page  # it is no number of buffers that a user has made


def test_texts_of_the_program_cannot_leave_their_place_in_the_page(pinned):
    class Odd(Plain):
        pass

    Odd.__name__ = "</script><script>alert(1)</script><!-- \u2028 @@DATA@@"
    with audit.record() as recording:
        Odd().allocate(64).close()
    page = recording.report.to_html()
    assert "<script>alert" not in page
    assert page_data(page)["resources"][0][0] == Odd.__name__


def test_all_frames_and_own_frames(pinned):
    class Around(Plain):
        def allocate(self, size, *, stream=None):
            return super().allocate(size, stream=stream)

    with audit.record() as recording:
        kept = Around().allocate(64)
    report = recording.report
    assert any("pytest" in frame.file for frame in report.leaked[0].origin)
    assert "threading" not in report.to_text()
    assert len(report.to_text(all_frames=True).splitlines()) >= len(report.to_text().splitlines())
    kept.close()
