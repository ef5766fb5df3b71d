# SPDX-License-Identifier: Apache-2.0
"""Exports and imports of virtual memory, every driver call failing in turn, and every field of a message wrong."""

import contextlib
import os
import pickle
import resource as limit
import time
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler

import hypothesis
import pytest
from hypothesis import strategies as st

from cuda.core import Buffer, CUDAError, CUDAWarning, VirtualMemoryResource
from cuda.core._memory import _counters
from cuda.core._memory._virtual_descriptor import VirtualBufferDescriptor, _receive_descriptor
from cuda.core._memory._virtual_sharing import _receive_buffer
from cuda.core._sent_payload import check_of
from graph_tools import soon
from shared_pools import descriptors, make
from support import GRANULE, attempt, calls_in_order, fill_granules, free_memory, granules_hold, warnings_seen
from wrong_pickles import damaged

pytestmark = [pytest.mark.provokes_refusals, pytest.mark.usefixtures("device")]

ONCE_AND_FOR_GOOD = pytest.mark.parametrize("sticky", [False, True], ids=["once", "for good"])
SIZES = (GRANULE, 3 * GRANULE, 2 * GRANULE)
# What says that an input is wrong; nothing else may come out.
REFUSALS = (TypeError, ValueError, OverflowError, RuntimeError, OSError)


class World:
    """A buffer of unequal chunks, and files that others have open."""

    def __init__(self, stream, tmp_path):
        self.stream = stream
        self.resource = VirtualMemoryResource(0)
        self.buffer = self.resource.allocate(SIZES[0])
        self.buffer = self.resource.modify_allocation(self.buffer, sum(SIZES[:2]))
        self.buffer = self.resource.modify_allocation(self.buffer, sum(SIZES))
        fill_granules(self.buffer)
        self.buffer.ipc_descriptor.close()  # the simulated driver opens a file for each chunk that is exported
        self.pool = make()
        self.pool_file = self.pool.allocation_handle
        self.files = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(2)]
        os.write(self.files[1], b"x" * 3 * GRANULE)
        self.files += os.pipe()
        self.files.append(os.memfd_create("somebody's"))
        self.before = self.state()

    def state(self):
        return _counters.live(), descriptors(), free_memory()

    def is_whole(self):
        """Raise unless everything is as before, and what is right still works."""
        assert soon(lambda: self.state() == self.before), "something is left"
        with self.buffer.ipc_descriptor as descriptor:
            there = Buffer.from_ipc_descriptor(self.resource, descriptor, stream=self.stream)
        assert there.size == sum(SIZES)
        there.close()
        del there
        assert soon(lambda: self.state() == self.before), "something is left"

    def close(self):
        for number in self.files:
            os.close(number)
        assert granules_hold(self.buffer, 6)
        self.buffer.close()
        self.pool_file.close()
        self.pool.close()


@pytest.fixture
def world(stream, tmp_path):
    world = World(stream, tmp_path)
    # What multiprocessing opens for itself is open from the first message on.
    os.close(resource_sharer.DupFd(world.files[0]).detach())
    time.sleep(0.1)  # the connection that it was fetched through is closed by a thread
    world.before = world.state()
    yield world
    world.close()
    resource_sharer.stop()


@pytest.fixture
def parts(world):
    """Return file descriptors as a message has them, and take back what was not fetched."""
    made = []

    def wrap(numbers):
        wrapped = [resource_sharer.DupFd(number) for number in numbers]
        made.extend(wrapped)
        return tuple(wrapped)

    yield wrap
    for each in made:
        try:
            os.close(each.detach())
        except Exception:
            pass  # it was fetched


def checked(size, sizes, parts):
    """Return a message with the check that an exporter would make of it: what is wrong in it is no damage."""
    try:
        payload = b"".join(part for part in parts if isinstance(part, bytes))
        return size, sizes, parts, check_of("virtual memory", payload, size, *sizes)
    except (TypeError, ValueError, OverflowError):
        return size, sizes, parts, 0  # no exporter could have sent this


def receive(*message):
    """Do what a process does with a message that has arrived."""
    return _receive_buffer(_receive_descriptor(*checked(*message)))


# --- failures of the driver ---------------------------------------------------------------------------------------


@pytest.mark.watched
@ONCE_AND_FOR_GOOD
def test_every_call_of_an_export_fails(driver_watch, world, sticky):
    descriptor, calls = calls_in_order(driver_watch, lambda: world.buffer.ipc_descriptor)
    descriptor.close()
    assert {"cuMemRetainAllocationHandle", "cuMemExportToShareableHandle"} <= dict(calls).keys()
    for name, n in calls:
        if name == "cuMemRelease":
            continue  # see below
        with driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            _, error = attempt(lambda: world.buffer.ipc_descriptor, CUDAError)
        assert failure.fired
        assert name in str(error)
        assert world.buffer.loans == 0
        del error
        world.is_whole()


@pytest.mark.watched
@ONCE_AND_FOR_GOOD
def test_ipc_02_every_call_of_an_import_fails(driver_watch, world, sticky):
    descriptor = world.buffer.ipc_descriptor

    def operation():
        return Buffer.from_ipc_descriptor(world.resource, descriptor, stream=world.stream)

    there, calls = calls_in_order(driver_watch, operation)
    there.close()
    del there
    before = world.state()
    assert {"cuMemImportFromShareableHandle", "cuMemMap", "cuMemSetAccess", "cuMemRelease"} <= dict(
        calls
    ).keys()
    for name, n in calls:
        what = f"{name} {n}"
        with warnings_seen() as seen, driver_watch.fail(name, nth=n, sticky=sticky) as failure:
            there, error = attempt(operation, CUDAError)
        assert failure.fired, what
        assert seen == [], what
        if error is None:
            assert name == "cuMemRelease", f"{what} was swallowed"
            assert granules_hold(there, 6)
            there.close()
        else:
            assert name in str(error), f"{what}: {error}"
        there = error = None
        assert world.state() == before, what
        again = operation()
        again.close()
        del again
    descriptor.close()


@pytest.mark.watched
@pytest.mark.parametrize("undo", ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"])
def test_what_an_import_could_not_undo_is_returned_by_the_next(driver_watch, world, undo):
    with world.buffer.ipc_descriptor as descriptor:
        with (
            warnings_seen() as seen,
            driver_watch.fail("cuMemSetAccess"),
            driver_watch.fail(undo, sticky=True),
        ):
            with pytest.raises(CUDAError, match="cuMemSetAccess"):
                Buffer.from_ipc_descriptor(world.resource, descriptor, stream=world.stream)
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert "could not be undone" in str(seen[0].message)
    with world.buffer.ipc_descriptor as descriptor:
        Buffer.from_ipc_descriptor(world.resource, descriptor, stream=world.stream).close()
    world.is_whole()


@pytest.mark.watched
@ONCE_AND_FOR_GOOD
def test_every_call_of_unpickling_fails(driver_watch, world, sticky):
    there, calls = calls_in_order(
        driver_watch, lambda: pickle.loads(bytes(ForkingPickler.dumps(world.buffer)))
    )
    there.close()
    del there
    import_begins = calls.index(("cuMemImportFromShareableHandle", 1))
    for name, n in calls[import_begins:]:
        if name in ("cuCtxPopCurrent", "cuMemRelease"):
            continue  # they undo what has had its effect
        form = bytes(ForkingPickler.dumps(world.buffer))
        with driver_watch.fail(name, nth=1, sticky=True) as failure:
            there, error = attempt(lambda form=form: pickle.loads(form), CUDAError)
        assert failure.fired, f"{name} {n}"
        assert error is not None, f"{name} {n}"
        assert there is None
        del error
        assert world.state()[0] == world.before[0]
    resource_sharer.stop()


@contextlib.contextmanager
def files_left(count):
    """Let this process open so many files more. The limit is on their numbers, so what is free below is taken."""
    limits = limit.getrlimit(limit.RLIMIT_NOFILE)
    highest = max(descriptors())
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < highest:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    limit.setrlimit(limit.RLIMIT_NOFILE, (max(highest, *taken) + 1 + count, limits[1]))
    try:
        yield
    finally:
        limit.setrlimit(limit.RLIMIT_NOFILE, limits)
        for number in taken:
            os.close(number)


def test_a_message_for_which_there_are_no_files_leaves_none(world):
    """What was duplicated for it would keep the memory until the process ends."""
    with world.buffer.ipc_descriptor as descriptor:
        before = descriptors()
        for count in range(len(SIZES)):
            with files_left(count), pytest.raises(OSError, match="Too many open files"):
                ForkingPickler.dumps(descriptor)
            assert soon(lambda: descriptors() == before), count
        form = ForkingPickler.dumps(descriptor)
        pickle.loads(form).close()
    world.is_whole()


def test_a_message_that_fails_half_way_leaves_nothing(world, monkeypatch):
    made = resource_sharer.DupFd
    calls = []

    def refuse_the_third(number):
        calls.append(number)
        if len(calls) == 3:
            raise OSError("refused")
        return made(number)

    with world.buffer.ipc_descriptor as descriptor:
        monkeypatch.setattr(resource_sharer, "DupFd", refuse_the_third)
        with pytest.raises(OSError, match="refused"):
            ForkingPickler.dumps(descriptor)
        monkeypatch.undo()
    world.is_whole()


# --- wrong messages -----------------------------------------------------------------------------------------------


def test_a_right_message_is_received(world, parts):
    with world.buffer.ipc_descriptor as descriptor:
        numbers = [int(handle) for handle in descriptor_handles(descriptor)]
        there = receive(sum(SIZES), SIZES, parts(numbers))
    assert granules_hold(there, 6)
    there.close()
    world.is_whole()


def descriptor_handles(descriptor):
    """Return the handles of a descriptor: it sends each as a duplicate."""
    import gc

    return [thing for thing in gc.get_referents(descriptor) if isinstance(thing, tuple)][-1]


def test_ipc_06_sizes_that_are_not_the_chunks(world, parts):
    total = sum(SIZES)
    with world.buffer.ipc_descriptor as descriptor:
        numbers = [int(handle) for handle in descriptor_handles(descriptor)]
        for size, sizes in (
            (total, (SIZES[1], SIZES[0], SIZES[2])),
            (total, (2 * GRANULE, 2 * GRANULE, 2 * GRANULE)),
            (total + GRANULE, (SIZES[0], SIZES[1], SIZES[2] + GRANULE)),
            (total, (SIZES[0], SIZES[1], SIZES[2] + (1 << 45))),
            (total, (SIZES[0], SIZES[1], 1 << 62)),
            (total, (1 << 62, 1 << 62, 1 << 62)),
            (total, (SIZES[0] + 1, SIZES[1], SIZES[2])),
            (total, (SIZES[0], SIZES[1], 4096)),
            (total + 1, SIZES),
            (0, SIZES),
            (-1, SIZES),
            (2**64, SIZES),
            (True, SIZES),
            (None, SIZES),
            (1.5, SIZES),
            (total, (SIZES[0], SIZES[1], 0)),
            (total, (SIZES[0], SIZES[1], -GRANULE)),
            (total, (SIZES[0], SIZES[1], 2**70)),
            (total, (SIZES[0], SIZES[1], None)),
            (total, SIZES[:2]),
            (total, (*SIZES, GRANULE)),
            (total, list(SIZES)),
            (total, None),
            (total, ()),
        ):
            with pytest.raises(ValueError):
                receive(size, sizes, parts(numbers))
    del descriptor
    for each in range(2):
        assert world.state()[0] == world.before[0], each


def test_ipc_06_files_that_are_no_chunks_are_refused_and_stay_open(world, parts):
    with world.buffer.ipc_descriptor as descriptor:
        good = [int(handle) for handle in descriptor_handles(descriptor)]
        wrong = [*world.files, int(world.pool_file)]
        for number in wrong:
            for place in range(3):
                numbers = list(good)
                numbers[place] = number
                with pytest.raises(ValueError, match="none of virtual memory"):
                    receive(sum(SIZES), SIZES, parts(numbers))
        opened = descriptors()
        assert set(wrong) <= opened.keys()
    for number in world.files:
        os.fstat(number)
    assert world.state()[0] == world.before[0]


def test_ipc_06_a_number_in_a_message_is_never_taken(world):
    """Also not where it is one of this very process."""
    number = world.files[0]
    for forged in (number, str(number), None, (number,), -1, 2**40, object(), [number]):
        with pytest.raises(ValueError, match="has come along"):
            _receive_descriptor(*checked(GRANULE, (GRANULE,), (forged,)))
        with pytest.raises(ValueError):
            _receive_descriptor(*checked(GRANULE, (GRANULE,), forged))
    for length in (0, 63, 65, 1000):
        with pytest.raises(ValueError, match="a fabric handle is 64 bytes"):
            _receive_descriptor(*checked(GRANULE, (GRANULE,), (bytes(length),)))
    world.is_whole()


def test_ipc_06_more_chunks_than_any_buffer_has(world):
    count = (1 << 20) + 1
    with pytest.raises(ValueError, match="more than any buffer has"):
        _receive_descriptor(*checked(count, (1,) * count, (b"",) * count))
    world.is_whole()


def test_a_fabric_handle_that_names_nothing_is_refused(world):
    descriptor = _receive_descriptor(*checked(GRANULE, (GRANULE,), (bytes(64),)))
    assert isinstance(descriptor, VirtualBufferDescriptor)
    assert not descriptor.is_closed
    assert pickle.loads(pickle.dumps(descriptor)).size == GRANULE
    for take in (
        lambda: Buffer.from_ipc_descriptor(world.resource, descriptor, stream=world.stream),
        lambda: _receive_buffer(descriptor),
    ):
        _, error = attempt(take)
        assert isinstance(error, (ValueError, CUDAError)), error
    world.is_whole()


def test_ipc_06_what_is_not_as_sent_reaches_no_driver(world, driver_watch):
    """One wrong bit in a handle, a size or the check: a driver might believe it."""
    handles = (bytes(range(64)), bytes(64))
    sizes = (GRANULE, 3 * GRANULE)
    size, _, _, check = message = checked(4 * GRANULE, sizes, handles)
    assert pickle.loads(pickle.dumps(_receive_descriptor(*message))).size == size
    damaged = [
        (
            *message[:2],
            (handles[0][:place] + bytes([handles[0][place] ^ 64]) + handles[0][place + 1 :], handles[1]),
        )
        for place in range(64)
    ]
    damaged += [
        (size, sizes, handles[::-1]),
        (size, sizes[::-1], handles),
        (size, (2 * GRANULE, 2 * GRANULE), handles),
        (size, (GRANULE, 4 * GRANULE), handles),
        (size - GRANULE, sizes, handles),
    ]
    wrong = [(*each, check) for each in damaged]
    wrong += [
        (*message[:3], each) for each in (0, check + 1, -check, True, "x", b"", None, float(check), 2**70)
    ]
    with driver_watch.no_call():
        for each in wrong:
            with pytest.raises(ValueError, match="not what its exporter has sent"):
                _receive_descriptor(*each)
    world.is_whole()


def test_ipc_06_no_file_is_fetched_where_the_check_is_wrong(world, parts):
    with world.buffer.ipc_descriptor as descriptor:
        numbers = [int(handle) for handle in descriptor_handles(descriptor)]
        message = checked(sum(SIZES), SIZES, parts(numbers))
        before = descriptors()
        with pytest.raises(ValueError, match="not what its exporter has sent"):
            _receive_descriptor(*message[:3], message[3] ^ 1)
        assert descriptors().keys() == before.keys()
        receive(*message[:3]).close()


def test_what_is_no_descriptor_at_all(world):
    for wrong in (None, 5, b"x", world.buffer, world.pool_file):
        with pytest.raises(ValueError, match="what was received is no buffer"):
            _receive_buffer(wrong)
    world.is_whole()


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5).map(lambda n: n * GRANULE),
    st.integers(),
    st.floats(),
    st.binary(max_size=70),
    st.binary(min_size=64, max_size=64),
    st.text(max_size=5),
    st.just(object()),
)
odd_list = st.one_of(odd, st.lists(odd, max_size=4))


@hypothesis.settings(
    max_examples=200,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(size=odd, sizes=odd_list, parts=odd_list)
def test_ipc_06_messages_of_anything(world, size, sizes, parts):
    for kind in (list, tuple):
        message = [size, *(kind(each) if isinstance(each, list) else each for each in (sizes, parts))]
        thing, error = attempt(lambda message=message: receive(*message))
        if error is None:
            assert thing.size == 0
            thing.close()
        else:
            assert isinstance(error, (*REFUSALS, CUDAError)), repr(error)
            assert not isinstance(error, CUDAError) or any(isinstance(each, bytes) for each in message[2])
    del thing, error
    assert _counters.live() == world.before[0]
    assert soon(lambda: descriptors().keys() == world.before[1].keys())


@hypothesis.settings(
    max_examples=150,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture, hypothesis.HealthCheck.too_slow],
)
@hypothesis.given(data=st.data())
def test_ipc_06_pickles_with_wrong_bytes(world, data):
    form = damaged(data, ForkingPickler.dumps(world.buffer))
    thing = None
    try:
        thing = Reader(form).load()
    except Exception:
        pass  # a broken pickle raises anything; what counts is what is left
    if isinstance(thing, Buffer):
        thing.close()
    del thing
    assert _counters.live() == world.before[0]
    resource_sharer.stop()  # it holds what was not fetched


class Reader(pickle.Unpickler):
    """Reads wrong pickles without running what has nothing to do with sharing."""

    def __init__(self, form):
        import io

        super().__init__(io.BytesIO(form))

    def find_class(self, module, name):
        if module.startswith("cuda.core.") or (module, name) == ("multiprocessing.resource_sharer", "DupFd"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that is sent")
