# SPDX-License-Identifier: Apache-2.0
"""Buffer.copy_to and copy_from: which bytes arrive, what is refused, what is lent meanwhile."""

import ctypes

import pytest

from buffer_kinds import SOURCES, WITH_RESOURCE
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CloseResult,
    CUDAError,
    Host,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from cuda.core.utils import CopyOptions
from held_work import Gate, Waiting
from memory_kinds import KINDS, SIZE, get, pattern, put
from python_resources import Plain
from support import (
    GRANULE,
    blocked,
    check,
    child_output,
    given_back,
    in_context,
    race,
    read,
    still_allocated,
    warnings_seen,
    write,
)

SMALL = 4096


@pytest.fixture
def plain():
    return Plain()


# --- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_all_bytes_arrive_between_memory_of_any_two_kinds(device, stream, source, target):
    src, dst = KINDS[source](SIZE), KINDS[target](SIZE)
    data = pattern(SIZE, seed=3)
    put(src, data)
    put(dst, bytes(SIZE))
    assert src.copy_to(dst, stream=stream) is dst
    stream.sync()
    assert get(dst) == data
    put(src, bytes(SIZE))
    assert src.copy_from(dst, stream=stream) is None
    stream.sync()
    assert get(src) == data
    for buffer in (src, dst):
        assert buffer.loans == 0
        buffer.close()


@pytest.mark.parametrize("kind", WITH_RESOURCE)
def test_without_a_destination_a_new_buffer_comes_from_the_same_resource(device, stream, kind):
    source = SOURCES[kind](device)
    src = source.allocate(stream=stream)
    put(src, pattern(src.size))
    dst = src.copy_to(stream=stream)
    stream.sync()
    assert dst is not src
    assert dst.ownership is Ownership.OWNED
    assert dst.memory_resource is src.memory_resource
    assert dst.size == src.size
    assert get(dst) == pattern(src.size)
    src.close()
    dst.close()


@pytest.mark.parametrize("kind", ["function", "managed", "borrowed", "host", "slice"])
def test_without_a_resource_a_destination_must_be_given(device, stream, kind, driver_watch):
    buffer = KINDS[kind](SIZE)
    with driver_watch.no_call():
        with pytest.raises(ValueError, match="a destination buffer must be provided"):
            buffer.copy_to(stream=stream)
    assert not buffer.is_closed
    buffer.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_new_destination_is_returned_when_the_copy_is_refused(device, stream, plain, driver_watch):
    src = plain.allocate(SMALL)
    with driver_watch.fail("cuMemcpyAsync", result="CUDA_ERROR_UNKNOWN"):
        with pytest.raises(CUDAError, match="cuMemcpyAsync"):
            src.copy_to(stream=stream)
    assert len(plain.held) == 1
    assert src.loans == 0
    src.close()


class ByHand(Plain):
    """Its memory goes back by a close only."""

    release_on_collection = False


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_new_destination_is_closed_and_not_dropped(device, stream, driver_watch):
    resource = ByHand()
    src = resource.allocate(SMALL)
    with warnings_seen() as seen:
        with driver_watch.fail("cuMemcpyAsync", result="CUDA_ERROR_UNKNOWN"):
            with pytest.raises(CUDAError, match="cuMemcpyAsync") as raised:
                src.copy_to(stream=stream)
    assert seen == []
    assert getattr(raised.value, "__notes__", []) == []
    assert [(size, order) for _, size, order in resource.asked] == [(SMALL, stream)]
    assert list(resource.held) == [src.handle]
    src.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_a_new_destination_that_cannot_be_closed_is_a_note(device, stream, driver_watch):
    class Stubborn(ByHand):
        refuses = False

        def deallocate(self, ptr, size, *, stream=None):
            if self.refuses:
                raise OSError("not now")
            super().deallocate(ptr, size, stream=stream)

    resource = Stubborn()
    src = resource.allocate(SMALL)
    resource.refuses = True
    with warnings_seen() as seen:
        with driver_watch.fail("cuMemcpyAsync", result="CUDA_ERROR_UNKNOWN"):
            with pytest.raises(CUDAError, match="cuMemcpyAsync") as raised:
                src.copy_to(stream=stream)
        notes = raised.value.__notes__
        del raised
    assert len(notes) == 1
    assert "not now" in notes[0]
    (left,) = set(resource.held) - {src.handle}
    assert f"{left:#x}" in notes[0]
    assert all(f"{left:#x}" in str(warning.message) for warning in seen)
    resource.refuses = False
    resource.give_back(left)
    src.close()


def test_a_destination_that_was_given_stays_open(stream, plain):
    with plain.allocate(SMALL) as src, plain.allocate(SMALL // 2) as dst:
        with pytest.raises(ValueError, match="sizes mismatch"):
            src.copy_to(dst, stream=stream)
        assert not dst.is_closed


def test_a_resource_that_gives_no_buffer_is_found_out(device, stream, plain):
    class Odd(Plain):
        answer = None

        def allocate(self, size, *, stream=None):
            return self.answer or super().allocate(size, stream=stream)

    resource = Odd()
    src = resource.allocate(SMALL)
    resource.answer = "no buffer"
    with pytest.raises(TypeError, match="dst must be a Buffer, got str: 'no buffer'"):
        src.copy_to(stream=stream)
    resource.answer = plain.allocate(SMALL // 2)
    with pytest.raises(ValueError, match="sizes mismatch"):
        src.copy_to(stream=stream)
    resource.answer.close()
    src.close()


def test_the_resource_gets_size_and_stream(device, stream):
    class Curious(Plain):
        def allocate(self, size, *, stream=None):
            self.wanted = size, stream
            return super().allocate(size, stream=stream)

    resource = Curious()
    src = resource.allocate(SMALL)
    dst = src.copy_to(stream=stream)
    assert resource.wanted == (SMALL, stream)
    src.close()
    dst.close()


@pytest.mark.parametrize("options", [None, CopyOptions()], ids=["plain", "options"])
def test_nothing_is_copied_without_a_driver_call(device, stream, driver_watch, options):
    virtual = VirtualMemoryResource(device)
    empty, other = virtual.allocate(0), Buffer.from_handle(0, 0)
    with driver_watch.no_call():
        assert empty.copy_to(other, stream=stream, options=options) is other
        empty.copy_from(other, stream=stream, options=options)
        copy = empty.copy_to(stream=stream, options=options)
    assert copy.size == 0
    assert copy.ownership is Ownership.OWNED
    for buffer in (empty, other, copy):
        buffer.close()


def test_a_copy_onto_itself_changes_nothing(device, stream, plain):
    buffer = plain.allocate(SMALL)
    write(buffer.handle, pattern(SMALL))
    assert buffer.copy_to(buffer, stream=stream) is buffer
    stream.sync()
    assert read(buffer.handle, SMALL) == pattern(SMALL)
    assert buffer.loans == 0
    buffer.close()


@pytest.mark.parametrize("token", [LEGACY_DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM], ids=["legacy", "own"])
def test_the_default_streams_order_copies_too(device, plain, token):
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    src.copy_to(dst, stream=token)
    token.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()


@pytest.mark.sim_only
def test_a_copy_is_ordered_by_its_stream_and_waits_for_nothing(device, stream, plain):
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    write(dst.handle, bytes(SMALL))
    other = device.create_stream()
    with Gate(stream):
        src.copy_to(dst, stream=stream)  # returns while the stream stands still
        check(driver.cuMemcpyDtoHAsync(before := bytearray(SMALL), dst.handle, SMALL, other.handle))
        other.sync()
        assert bytes(before) == bytes(SMALL)
    stream.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()


@pytest.mark.sim_only
def test_the_stream_of_a_copy_orders_the_release_only_where_it_is_recorded(device, stream, plain):
    """As in 1.2.2: a Python-defined resource is asked with the recorded stream, not with the copy's."""
    src, dst = plain.allocate(SMALL, stream=device.create_stream()), plain.allocate(SMALL)
    src.copy_to(dst, stream=stream)
    stream.sync()
    src.close()
    assert plain.asked[-1][2] != stream
    dst.set_deallocation_stream(stream)
    dst.close()
    assert plain.asked[-1][2] == stream


def test_host_memory_is_read_before_the_call_returns(device, stream, plain):
    memory = ctypes.create_string_buffer(pattern(SMALL), SMALL)
    src = Buffer.from_handle(ctypes.addressof(memory), SMALL, owner=memory)
    dst = plain.allocate(SMALL)
    with Gate(stream):
        src.copy_to(dst, stream=stream)
        ctypes.memset(memory, 0, SMALL)
    stream.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()


def test_numpy_memory_is_copied_to_a_device_and_back(device, stream, plain):
    numpy = pytest.importorskip("numpy")
    there, back = numpy.arange(SMALL, dtype="u1"), numpy.zeros(SMALL, dtype="u1")
    on_device = plain.allocate(SMALL)
    with Buffer.from_handle(there.ctypes.data, SMALL, owner=there) as src:
        src.copy_to(on_device, stream=stream)
    with Buffer.from_handle(back.ctypes.data, SMALL, owner=back) as dst:
        on_device.copy_to(dst, stream=stream)
    stream.sync()
    assert (there == back).all()
    on_device.close()


def test_a_copy_goes_on_after_a_grow_that_moves(device, stream, resource, plain):
    small = resource.allocate(GRANULE)
    put(small, pattern(GRANULE))
    with blocked(small):
        large = resource.modify_allocation(small, 2 * GRANULE)
    copy = plain.allocate(2 * GRANULE)
    large.copy_to(copy, stream=stream)
    stream.sync()
    assert read(copy.handle, GRANULE) == pattern(GRANULE)
    with pytest.raises(OwnershipError, match=r"Buffer has been closed: it is TRANSFERRED, GROWN"):
        small.copy_to(copy, stream=stream)
    with pytest.raises(OwnershipError, match=r"Buffer has been closed: it is TRANSFERRED, GROWN"):
        copy.copy_to(small, stream=stream)
    copy.close()
    large.close()


# --- what is refused ---------------------------------------------------------------------------------------------


REFUSED = {
    "dst number": (lambda a, s: a.copy_to(4096, stream=s), TypeError, r"dst must be a Buffer, got int: 4096"),
    "dst bytes": (lambda a, s: a.copy_to(b"", stream=s), TypeError, "dst must be a Buffer"),
    "dst class": (lambda a, s: a.copy_to(Buffer, stream=s), TypeError, "dst must be a Buffer"),
    "src None": (lambda a, s: a.copy_from(None, stream=s), TypeError, r"src must be a Buffer, got NoneType"),
    "src number": (lambda a, s: a.copy_from(0, stream=s), TypeError, "src must be a Buffer"),
    "no stream": (lambda a, s: a.copy_to(a), TypeError, "stream"),
    "stream None": (lambda a, s: a.copy_to(a, stream=None), TypeError, "stream is required"),
    "stream number": (lambda a, s: a.copy_to(a, stream=0), TypeError, r"[sS]tream .*int"),
    "stream None, no dst": (lambda a, s: a.copy_to(stream=None), TypeError, "stream is required"),
    "options dict": (
        lambda a, s: a.copy_to(a, stream=s, options={}),
        TypeError,
        "options must be CopyOptions",
    ),
    "options, no dst": (
        lambda a, s: a.copy_to(stream=s, options="any"),
        TypeError,
        "options must be CopyOptions",
    ),
    "options list": (
        lambda a, s: a.copy_from(a, stream=s, options=[CopyOptions()]),
        TypeError,
        "copy_from: options must be CopyOptions, got list",
    ),
    "options, legacy": (
        lambda a, s: a.copy_to(a, stream=LEGACY_DEFAULT_STREAM, options=CopyOptions()),
        TypeError,
        "copy_to does not accept LEGACY_DEFAULT_STREAM with options",
    ),
    "options, legacy, from": (
        lambda a, s: a.copy_from(a, stream=LEGACY_DEFAULT_STREAM, options=CopyOptions()),
        TypeError,
        "copy_from does not accept LEGACY_DEFAULT_STREAM with options",
    ),
    "hint number": (
        lambda a, s: a.copy_to(a, stream=s, options=CopyOptions(src_location_hint=0)),
        TypeError,
        r"location must be a Device, Host, or None; got int: 0",
    ),
    "hint text, no dst": (
        lambda a, s: a.copy_to(stream=s, options=CopyOptions(dst_location_hint="host")),
        TypeError,
        "location must be a Device, Host, or None; got str",
    ),
    "hint huge node": (
        lambda a, s: a.copy_to(a, stream=s, options=CopyOptions(src_location_hint=Host(2**40))),
        ValueError,
        str(2**40),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_val_06_wrong_arguments_are_refused_before_any_driver_call(device, stream, plain, driver_watch, case):
    call, error, text = REFUSED[case]
    buffer = plain.allocate(SMALL)
    with driver_watch.no_call():
        with pytest.raises(error, match=text):
            call(buffer, stream)
    assert (buffer.ownership, buffer.loans) == (Ownership.OWNED, 0)
    assert len(plain.held) == 1
    buffer.close()


def test_a_closed_stream_is_refused(device, plain, driver_watch):
    closed = device.create_stream()
    closed.close()
    buffer = plain.allocate(SMALL)
    with driver_watch.no_call():
        for call in (
            lambda: buffer.copy_to(buffer, stream=closed),
            lambda: buffer.copy_to(stream=closed),
            lambda: buffer.copy_from(buffer, stream=closed),
            lambda: buffer.fill(0, stream=closed),
        ):
            with pytest.raises(RuntimeError, match="Stream has been closed"):
                call()
    buffer.close()


@pytest.mark.parametrize("other", [0, 1, SMALL - 1, SMALL + 1, 2 * SMALL])
def test_sizes_that_differ_are_refused(device, stream, plain, driver_watch, other):
    one, two = plain.allocate(SMALL), plain.allocate(other) if other else Buffer.from_handle(0, 0)
    with driver_watch.no_call():
        text = rf"buffer sizes mismatch between src and dst \(sizes are: src={SMALL}, dst={other}\)"
        if other:
            text += rf"; use a slice of the larger one: {'dst' if other > SMALL else 'src'}\[:{min(SMALL, other)}\]$"
        with pytest.raises(ValueError, match=text):
            one.copy_to(two, stream=stream)
        with pytest.raises(ValueError, match=text):
            two.copy_from(one, stream=stream)
    assert one.loans == two.loans == 0
    one.close()
    two.close()


@pytest.mark.parametrize("shift", [1, 64, SMALL - 1])
def test_ranges_that_overlap_in_a_part_are_refused(device, stream, plain, driver_watch, shift):
    whole = plain.allocate(2 * SMALL)
    with whole[:SMALL] as low, whole[shift : SMALL + shift] as high, driver_watch.no_call():
        for src, dst in ((low, high), (high, low)):
            with pytest.raises(ValueError, match="must not overlap"):
                src.copy_to(dst, stream=stream)
            with pytest.raises(ValueError, match="must not overlap"):
                dst.copy_from(src, stream=stream)
    whole.close()


def test_neighbours_do_not_overlap(device, stream, plain):
    whole = plain.allocate(2 * SMALL)
    write(whole.handle, pattern(SMALL) + bytes(SMALL))
    with whole[:SMALL] as low, whole[SMALL:] as high:
        low.copy_to(high, stream=stream)
        stream.sync()
    assert read(whole.handle, 2 * SMALL) == 2 * pattern(SMALL)
    whole.close()


@pytest.mark.parametrize("how", ["closed", "lent and closed", "detached"])
def test_buf_05_a_buffer_that_is_over_is_neither_read_nor_written(device, stream, plain, driver_watch, how):
    good, bad, keep = plain.allocate(SMALL), plain.allocate(SMALL), None
    if how == "lent and closed":
        keep = bad[:16]
    if how == "detached":
        keep = bad.detach()
    else:
        bad.close()
    with driver_watch.no_call():
        for call in (
            lambda: bad.copy_to(good, stream=stream),
            lambda: bad.copy_to(stream=stream),
            lambda: bad.copy_to(stream=None),  # the state is told first
            lambda: good.copy_to(bad, stream=stream),
            lambda: bad.copy_from(good, stream=stream),
            lambda: good.copy_from(bad, stream=stream),
            lambda: good.copy_to(bad, stream=stream, options=CopyOptions()),
            lambda: bad.fill(0, stream=stream),
        ):
            with pytest.raises(OwnershipError, match="Buffer has been closed"):
                call()
    assert (good.loans, good.ownership) == (0, Ownership.OWNED)
    good.close()
    if how == "detached":
        Buffer.adopt(keep).close()
    elif keep is not None:
        keep.close()
    assert plain.held == {}


def test_a_lost_buffer_is_refused(driver_name):
    """In the child of a fork everything is lost, and no driver call may be made."""
    output = child_output(
        f"""
import sys
if {driver_name == "sim"}:
    import cuda_driver_sim
    cuda_driver_sim.activate()
import os
from cuda.core import Device, LegacyPinnedMemoryResource, OwnershipError
device = Device(0)
device.set_current()
stream = device.create_stream()
one, two = (LegacyPinnedMemoryResource().allocate(4096) for _ in range(2))
child = os.fork()
if child == 0:
    seen = 0
    for call in (
        lambda: one.copy_to(two, stream=stream),
        lambda: one.copy_from(two, stream=stream),
        lambda: one.copy_to(stream=stream),
        lambda: one.fill(1, stream=stream),
    ):
        try:
            call()
        except OwnershipError as error:
            seen += "lost in a forked process" in str(error)
    os._exit(seen)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        options=["-W", "ignore::DeprecationWarning"],
    )
    assert output == "4\n"


def test_a_buffer_that_is_being_freed_is_refused(device, stream):
    """A ``deallocate`` that copies from the buffer that it frees is told so."""

    class Copies(Plain):
        def deallocate(self, ptr, size, *, stream=None):
            for call in (
                lambda: self.buffer.copy_to(self.other, stream=self.order),
                lambda: self.other.copy_to(self.buffer, stream=self.order),
                lambda: self.buffer.fill(1, stream=self.order),
            ):
                with pytest.raises(OwnershipError, match="while another call is having it released"):
                    call()
            self.seen = True
            super().deallocate(ptr, size, stream=stream)

    resource, other = Copies(), Plain()
    resource.buffer, resource.other, resource.order = resource.allocate(SMALL), other.allocate(SMALL), stream
    resource.buffer.close()
    assert resource.seen
    assert resource.other.loans == 0
    resource.other.close()


# --- devices -----------------------------------------------------------------------------------------------------


@pytest.mark.two_devices
def test_a_copy_to_another_device_is_made_or_told(devices, device):
    """What the driver makes of two devices is its own matter; no loan is left in either case."""
    from cuda.core._memory._synchronous import _SynchronousMemoryResource

    stream = device.create_stream()
    src = _SynchronousMemoryResource(0).allocate(SMALL)
    devices[1].set_current()
    dst = _SynchronousMemoryResource(1).allocate(SMALL)
    device.set_current()
    write(src.handle, pattern(SMALL))
    src.copy_to(dst, stream=stream)
    stream.sync()
    devices[1].set_current()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    dst.close()
    device.set_current()
    src.close()


def test_a_thread_without_a_context_copies_on_a_stream_that_has_one(device, stream, plain):
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    (outcome,) = race(lambda: src.copy_to(dst, stream=stream))
    assert outcome is dst
    stream.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()


# --- while a copy is in the driver -------------------------------------------------------------------------------


def _copy_that_waits(src, stream):
    """A copy to ordinary memory of the host comes back when the bytes are there: the thread stays in the driver."""
    memory = ctypes.create_string_buffer(src.size)
    dst = Buffer.from_handle(ctypes.addressof(memory), src.size, owner=memory)
    copying = Waiting(in_context(lambda: src.copy_to(dst, stream=stream)))
    assert copying.waits()
    return copying, dst


@pytest.mark.sim_only
@pytest.mark.parametrize("kind", SOURCES)
def test_a_close_during_a_copy_returns_the_memory_after_it(device, stream, kind):
    source = SOURCES[kind](device)
    src = source.allocate(stream=device.create_stream())
    address, data = src.handle, pattern(src.size)
    put(src, data)
    with Gate(stream) as gate:
        copying, dst = _copy_that_waits(src, stream)
        assert (src.loans, dst.loans) == (1, 1)
        assert src.close() is CloseResult.LENT
        assert still_allocated(address)
        gate.open()
        assert copying.result() is dst
    assert get(dst) == data
    assert given_back(address)
    assert source.frees() in (None, 1)
    dst.close()


@pytest.mark.sim_only
def test_a_detach_during_a_copy_is_refused(device, stream, plain):
    src = plain.allocate(SMALL)
    with Gate(stream) as gate:
        copying, dst = _copy_that_waits(src, stream)
        with pytest.raises(BufferError, match="while loans on it are open"):
            src.detach()
        gate.open()
        copying.result()
    dst.close()
    Buffer.adopt(src.detach()).close()


@pytest.mark.sim_only
def test_a_grow_during_a_copy_leaves_it_the_addresses(device, stream, resource):
    src = resource.allocate(GRANULE)
    data = pattern(GRANULE)
    put(src, data)
    address = src.handle
    with blocked(src), Gate(stream) as gate:
        copying, dst = _copy_that_waits(src, stream)
        large = resource.modify_allocation(src, 2 * GRANULE)
        assert large.handle != address
        assert still_allocated(address)
        gate.open()
        assert copying.result() is dst
    assert get(dst) == data
    dst.close()
    large.close()
    assert not still_allocated(address)


# --- loans while a copy is made ----------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["src", "dst"])
def test_a_copy_racing_with_a_close_uses_no_returned_address(device, stream, role):
    """The close returns at once or after the copy; the copy is made or refused; the memory goes back once."""
    resource, other = Plain(), Plain()
    fixed = other.allocate(SMALL)
    made = 0
    for _ in range(200):
        buffer = resource.allocate(SMALL)
        src, dst = (buffer, fixed) if role == "src" else (fixed, buffer)
        copied, closed = race(lambda s=src, d=dst: s.copy_to(d, stream=stream), in_context(buffer.close))
        assert not isinstance(closed, Exception), closed
        if isinstance(copied, Exception):
            assert isinstance(copied, OwnershipError), copied
        else:
            made += 1
        stream.sync()
        assert resource.held == {}
    assert len(resource.asked) == 200
    assert fixed.loans == 0
    fixed.close()


def test_a_copy_racing_with_a_grow_uses_no_returned_address(device, stream, resource):
    fixed = Plain().allocate(GRANULE)
    write(fixed.handle, pattern(GRANULE))
    for _ in range(25):
        small = resource.allocate(
            GRANULE, stream=stream
        )  # the copy's: what the grow leaves is retired behind it
        with blocked(small):
            copied, large = race(
                lambda s=small: fixed.copy_to(s, stream=stream),
                in_context(lambda s=small: resource.modify_allocation(s, 2 * GRANULE)),
            )
        assert isinstance(large, Buffer), large
        stream.sync()
        if isinstance(copied, Exception):
            assert isinstance(copied, OwnershipError), copied
        else:
            assert read(large.handle, GRANULE) == pattern(GRANULE)
        assert large.loans == 0
        large.close()
    fixed.close()


def test_many_threads_copy_from_one_buffer(device, stream, plain):
    src = plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    targets = [plain.allocate(SMALL) for _ in range(8)]

    def copy_to(dst):
        for _ in range(50):
            src.copy_to(dst, stream=stream)

    outcomes = race(*(in_context(lambda d=dst: copy_to(d)) for dst in targets))
    assert outcomes == [None] * 8
    stream.sync()
    assert src.loans == 0
    for dst in targets:
        assert read(dst.handle, SMALL) == pattern(SMALL)
        dst.close()
    src.close()


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("options", [None, CopyOptions("any")], ids=["plain", "options"])
def test_every_call_of_a_copy_fails(device, stream, plain, driver_watch, options):
    src, dst = plain.allocate(SMALL), plain.allocate(SMALL)
    write(src.handle, pattern(SMALL))
    src.copy_to(dst, stream=stream, options=options)  # looks for what the driver has, once
    calls = driver_watch.calls_of(lambda: src.copy_to(dst, stream=stream, options=options))
    assert sum(count for name, count in calls.items() if name.startswith("cuMemcpy")) == 1
    for name, count in calls.items():
        for nth in range(1, count + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                with pytest.raises(CUDAError, match=name):
                    src.copy_to(dst, stream=stream, options=options)
            assert failure.fired == 1
            assert (src.loans, dst.loans) == (0, 0)
            assert not src.is_closed
            assert not dst.is_closed
    src.copy_to(dst, stream=stream, options=options)
    stream.sync()
    assert read(dst.handle, SMALL) == pattern(SMALL)
    src.close()
    dst.close()
