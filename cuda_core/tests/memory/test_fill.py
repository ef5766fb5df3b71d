# SPDX-License-Identifier: Apache-2.0
"""Buffer.fill: patterns of 1, 2 and 4 bytes, in the order of a stream."""

import array
import ctypes
import struct

import pytest

from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from held_work import Gate
from memory_kinds import KINDS, SIZE, get, put
from python_resources import Plain
from support import in_context, race, read, write

SMALL = 4096
DRIVERS_OWN = [kind for kind in KINDS if kind != "host"]
PATTERNS = {
    "0": (0, b"\x00"),
    "255": (255, b"\xff"),
    "True": (True, b"\x01"),
    "1 byte": (b"\xa5", b"\xa5"),
    "2 bytes": (b"\x01\x02", b"\x01\x02"),
    "4 bytes": (b"\x01\x02\x03\x84", b"\x01\x02\x03\x84"),
    "bytearray": (bytearray(b"\xfe\xff"), b"\xfe\xff"),
    "memoryview": (memoryview(b"abcdef")[1:5], b"bcde"),
    "array": (array.array("H", [0x8001]), struct.pack("=H", 0x8001)),
    "ctypes": (ctypes.c_float(1.5), struct.pack("=f", 1.5)),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_fills_the_whole_buffer_and_nothing_else(device, stream, name):
    value, expected = PATTERNS[name]
    whole = Plain().allocate(3 * SMALL)
    write(whole.handle, b"\x77" * 3 * SMALL)
    with whole[SMALL : 2 * SMALL] as part:
        assert part.fill(value, stream=stream) is None
        stream.sync()
    assert read(whole.handle, 3 * SMALL) == (
        b"\x77" * SMALL + expected * (SMALL // len(expected)) + b"\x77" * SMALL
    )
    assert whole.loans == 0
    whole.close()


@pytest.mark.parametrize("kind", DRIVERS_OWN)
def test_memory_of_every_kind_can_be_filled(device, stream, kind):
    buffer = KINDS[kind](SIZE)
    put(buffer, bytes(SIZE))
    buffer.fill(b"\x11\x22\x33\x44", stream=stream)
    stream.sync()
    assert get(buffer) == b"\x11\x22\x33\x44" * (SIZE // 4)
    assert buffer.loans == 0
    buffer.close()


@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "u4"])
def test_a_numpy_scalar_or_array_is_a_pattern(device, stream, dtype):
    numpy = pytest.importorskip("numpy")
    scalar = numpy.dtype(dtype).type(7)
    buffer = Plain().allocate(SMALL)
    for value in (scalar, numpy.array([scalar]), numpy.array(scalar)):
        write(buffer.handle, bytes(SMALL))
        buffer.fill(value, stream=stream)
        stream.sync()
        assert read(buffer.handle, SMALL) == scalar.tobytes() * (SMALL // scalar.nbytes)
    buffer.close()


def test_a_buffer_of_this_package_is_a_pattern_and_no_loan_stays(device, stream):
    from cuda.core import LegacyPinnedMemoryResource

    value = LegacyPinnedMemoryResource().allocate(4)
    memoryview(value)[:] = b"\x05\x06\x07\x08"
    buffer = Plain().allocate(SMALL)
    buffer.fill(value, stream=stream)
    stream.sync()
    assert read(buffer.handle, SMALL) == b"\x05\x06\x07\x08" * (SMALL // 4)
    assert value.loans == buffer.loans == 0
    value.close()
    buffer.close()


@pytest.mark.sim_only
def test_a_fill_is_ordered_by_its_stream_and_waits_for_nothing(device, stream):
    buffer = Plain().allocate(SMALL)
    write(buffer.handle, bytes(SMALL))
    with Gate(stream):
        buffer.fill(1, stream=stream)
    stream.sync()
    assert read(buffer.handle, SMALL) == b"\x01" * SMALL
    buffer.close()


def test_the_default_stream_orders_fills_too(device):
    buffer = Plain().allocate(SMALL)
    buffer.fill(9, stream=LEGACY_DEFAULT_STREAM)
    assert read(buffer.handle, SMALL) == b"\x09" * SMALL
    buffer.close()


WRONG = {
    "256": (256, OverflowError, "256"),
    "-1": (-1, OverflowError, "-1"),
    "2**70": (2**70, OverflowError, str(2**70)),
    "float": (1.5, TypeError, r"got float: 1\.5"),
    "None": (None, TypeError, "got NoneType"),
    "text": ("a", TypeError, "got str: 'a'"),
    "list": ([1], TypeError, r"got list: \[1\]"),
    "type": (int, TypeError, "got type"),
    "nothing": (b"", ValueError, "value must be 1, 2, or 4 bytes, got 0"),
    "3 bytes": (b"abc", ValueError, "value must be 1, 2, or 4 bytes, got 3"),
    "5 bytes": (b"abcde", ValueError, "value must be 1, 2, or 4 bytes, got 5"),
    "8 bytes": (ctypes.c_double(0), ValueError, "value must be 1, 2, or 4 bytes, got 8"),
    "steps": (memoryview(b"abcd")[::2], (ValueError, BufferError), "contiguous"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_patterns_are_refused_before_any_driver_call(device, stream, driver_watch, case):
    value, error, text = WRONG[case]
    buffer = Plain().allocate(SMALL)
    write(buffer.handle, bytes(SMALL))
    with driver_watch.no_call():
        with pytest.raises(error, match=text):
            buffer.fill(value, stream=stream)
    assert (buffer.loans, buffer.ownership) == (0, Ownership.OWNED)
    assert read(buffer.handle, SMALL) == bytes(SMALL)
    buffer.close()


@pytest.mark.parametrize(("size", "value"), [(5, b"ab"), (6, b"abcd"), (1, b"ab"), (4095, b"abcd")])
def test_a_size_that_is_no_multiple_of_the_pattern_is_refused(device, stream, driver_watch, size, value):
    buffer = Plain().allocate(size)
    with driver_watch.no_call():
        with pytest.raises(ValueError, match=rf"buffer size \({size}\) must be divisible by {len(value)}"):
            buffer.fill(value, stream=stream)
    buffer.close()


@pytest.mark.parametrize(("shift", "value"), [(1, b"ab"), (2, b"abcd"), (3, b"ab")])
def test_an_address_that_is_no_multiple_of_the_pattern_is_refused(device, stream, driver_watch, shift, value):
    whole = Plain().allocate(SMALL)
    with whole[shift : shift + 64] as part, driver_watch.no_call():
        with pytest.raises(ValueError, match=f"the address must be a multiple of {len(value)}"):
            part.fill(value, stream=stream)
        assert part.loans == 0
    whole.close()


@pytest.mark.parametrize("given", [None, 0, "stream"])
def test_val_06_a_fill_needs_a_stream(device, driver_watch, given):
    buffer = Plain().allocate(SMALL)
    with driver_watch.no_call():
        with pytest.raises(TypeError, match=r"[sS]tream"):
            buffer.fill(0, stream=given)
        with pytest.raises(TypeError, match="stream"):
            buffer.fill(0)
    buffer.close()


@pytest.mark.provokes_refusals
def test_ordinary_host_memory_is_the_drivers_to_refuse(device, stream):
    memory = ctypes.create_string_buffer(64)
    with Buffer.from_handle(ctypes.addressof(memory), 64, owner=memory) as buffer:
        with pytest.raises(CUDAError, match="cuMemsetD8Async"):
            buffer.fill(1, stream=stream)
        assert buffer.loans == 0


def test_filling_nothing_calls_no_driver(device, stream, driver_watch):
    empty = VirtualMemoryResource(device).allocate(0)
    with driver_watch.no_call():
        for value in (0, b"ab", b"abcd"):
            empty.fill(value, stream=stream)
        with pytest.raises(OverflowError):
            empty.fill(256, stream=stream)
    empty.close()


def test_a_pattern_that_closes_the_buffer_is_met_by_a_closed_buffer(device, stream, driver_watch):
    """Reading the pattern may run anybody's code: what it closes is not written."""
    resource = Plain()
    buffer = resource.allocate(SMALL)

    class Sly(Plain):
        """Closes the other buffer when it is asked whether the host may read this one."""

        is_host_accessible = property(lambda self: buffer.close() is not None)

        def give_back(self, ptr):
            pass

    memory = ctypes.c_char(b"a")
    pattern = Buffer.from_handle(ctypes.addressof(memory), 1, Sly())
    with pytest.raises(OwnershipError, match="Buffer has been closed"):
        buffer.fill(pattern, stream=stream)
    assert resource.held == {}


class Lying(int):
    """An integer of which every comparison and conversion lies."""

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = lambda self, other: True
    __hash__ = int.__hash__
    __index__ = __int__ = lambda self: 7


@pytest.mark.parametrize("value", [-1, 256, 2**40])
def test_what_an_integer_says_of_itself_does_not_count(device, stream, driver_watch, value):
    with LegacyPinnedMemoryResource().allocate(SMALL) as buffer, driver_watch.no_call():
        with pytest.raises(OverflowError, match=f"got {value}"):
            buffer.fill(Lying(value), stream=stream)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize("value", [1, b"ab", b"abcd"])
def test_every_call_of_a_fill_fails(device, stream, driver_watch, value):
    buffer = Plain().allocate(SMALL)
    write(buffer.handle, bytes(SMALL))
    calls = driver_watch.calls_of(lambda: buffer.fill(0, stream=stream))
    for name, count in driver_watch.calls_of(lambda: buffer.fill(value, stream=stream)).items():
        for nth in range(1, count + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                with pytest.raises(CUDAError, match=name):
                    buffer.fill(value, stream=stream)
            assert failure.fired == 1
            assert (buffer.loans, buffer.ownership) == (0, Ownership.OWNED)
    assert calls
    buffer.fill(value, stream=stream)
    stream.sync()
    assert read(buffer.handle, 4) == (bytes([value]) if value == 1 else value) * (
        4 // (1 if value == 1 else len(value))
    )
    buffer.close()


def test_a_fill_racing_with_a_close_uses_no_returned_address(device, stream):
    resource = Plain()
    for _ in range(200):
        buffer = resource.allocate(SMALL)
        filled, closed = race(lambda b=buffer: b.fill(1, stream=stream), in_context(buffer.close))
        assert not isinstance(closed, Exception), closed
        assert filled is None or isinstance(filled, OwnershipError), filled
        stream.sync()
        assert resource.held == {}
    assert len(resource.asked) == 200


def test_fills_leave_no_references(device, stream):
    import sys

    buffer, value = Plain().allocate(SMALL), bytearray(b"abcd")
    buffer.fill(value, stream=stream)
    before = [sys.getrefcount(x) for x in (buffer, value, stream)]
    for _ in range(100):
        buffer.fill(value, stream=stream)
        with pytest.raises(ValueError):
            buffer.fill(b"abc", stream=stream)
    value.extend(b"e")  # no export holds it
    assert [sys.getrefcount(x) for x in (buffer, value, stream)] == before
    stream.sync()
    buffer.close()
