# SPDX-License-Identifier: Apache-2.0
"""What an export looks like: the buffer protocol, sub-buffers, and views with an array interface."""

import ctypes
import gc
import io
import re

import numpy
import pytest

from buffer_kinds import SOURCES
from cuda.core import (
    Buffer,
    CloseResult,
    LegacyPinnedMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
    VirtualMemoryResource,
)
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from support import GRANULE, fill, given_back, read, still_allocated, write

SIZE = 4096
PATTERN = bytes(index % 251 for index in range(SIZE))

pytestmark = pytest.mark.usefixtures("device")


@pytest.fixture
def pinned(device):
    """An open buffer that the host reaches, with a pattern in it."""
    with LegacyPinnedMemoryResource().allocate(SIZE) as buffer:
        write(buffer.handle, PATTERN)
        yield buffer


@pytest.fixture
def plain(device):
    """An open buffer that the host does not reach, with a pattern in it."""
    with _SynchronousMemoryResource(0).allocate(SIZE) as buffer:
        write(buffer.handle, PATTERN)
        yield buffer


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


# --- the buffer protocol -----------------------------------------------------------------------------------------


def test_nothing_is_exported_from_address_0():
    buffer = Buffer.from_handle(0, 16)
    with pytest.raises(BufferError, match="address 0"):
        memoryview(buffer)
    assert buffer.loans == 0
    assert bytes(memoryview(Buffer.from_handle(0, 0))) == b""


def test_a_memoryview_is_the_memory(pinned):
    with memoryview(pinned) as view:
        assert (view.format, view.itemsize, view.ndim, view.shape, view.strides) == ("B", 1, 1, (SIZE,), (1,))
        assert (view.readonly, view.c_contiguous, view.nbytes) == (False, True, SIZE)
        assert view.obj is pinned
        assert view == PATTERN
        view[10:14] = b"host"
        assert read(pinned.handle + 10, 4) == b"host"
        write(pinned.handle + 20, b"device")
        assert bytes(view[20:26]) == b"device"
        assert ctypes.addressof(ctypes.c_char.from_buffer(view)) == pinned.handle
        gc.collect()
    assert pinned.loans == 0


def test_each_memoryview_is_one_loan(pinned):
    first, second = memoryview(pinned), memoryview(pinned)
    assert pinned.loans == 2
    part = first[8:16]
    assert pinned.loans == 2, "a part of a view shares its export"
    first.release()
    second.release()
    assert pinned.loans == 1
    assert bytes(part) == PATTERN[8:16]
    part.release()
    assert pinned.loans == 0


def test_copies_leave_no_loan(pinned):
    assert bytes(pinned) == PATTERN
    assert bytearray(pinned) == PATTERN
    assert b"".join([pinned, b"!"]) == PATTERN + b"!"
    assert (ctypes.c_char * 5).from_buffer_copy(pinned, 3).raw == PATTERN[3:8]
    assert pinned.loans == 0


def test_a_consumer_of_the_protocol_may_write(pinned):
    assert io.BytesIO(b"from a file").readinto(pinned) == 11
    assert read(pinned.handle, 11) == b"from a file"
    assert pinned.loans == 0


def test_numpy_sees_and_keeps_the_memory(pinned):
    array = numpy.frombuffer(pinned, dtype=numpy.uint8)
    assert array.ctypes.data == pinned.handle
    assert pinned.loans == 1
    part = array[100:200]
    del array
    assert pinned.loans == 1
    assert part.tobytes() == PATTERN[100:200]
    del part
    assert pinned.loans == 0


@pytest.mark.parametrize("kind", ["device", "virtual", "python", "function"])
def test_memory_that_the_host_cannot_reach_is_not_exported_to_it(device, kind):
    source = SOURCES[kind](device)
    with source.allocate() as buffer:
        for export in (memoryview, bytes, bytearray):
            with pytest.raises((BufferError, TypeError)):
                export(buffer)
        with pytest.raises(BufferError, match="host"):
            memoryview(buffer)
        assert buffer.loans == 0
        assert buffer.ownership is Ownership.OWNED


@pytest.mark.parametrize("how", ["closed", "detached"])
def test_a_closed_buffer_exports_nothing(how):
    buffer = LegacyPinnedMemoryResource().allocate(SIZE)
    allocation = buffer.detach() if how == "detached" else buffer.close()
    with pytest.raises(BufferError) as info:
        memoryview(buffer)
    assert isinstance(info.value.__cause__, OwnershipError)
    assert str(info.value.__cause__).startswith("Buffer has been closed")
    if how == "detached":
        Buffer.adopt(allocation).close()


def test_borrowed_memory_of_the_host_is_exported():
    block = ctypes.create_string_buffer(b"somebody else's", 32)
    buffer = Buffer.from_handle(ctypes.addressof(block), 32, owner=block)
    with memoryview(buffer) as view:
        assert bytes(view[:15]) == b"somebody else's"
        view[0] = ord("S")
        assert buffer.loans == 1
    assert block.value == b"Somebody else's"
    assert buffer.close() is CloseResult.DONE


def test_virtual_memory_of_the_host_is_exported(device):
    resource = VirtualMemoryResource(device, {"location_type": "host_numa"})
    with resource.allocate(GRANULE) as buffer:
        with memoryview(buffer) as view:
            assert view.nbytes == GRANULE
            view[:4] = b"host"
            view[-4:] = b"tail"
            assert bytes(view[:4]) + bytes(view[-4:]) == b"hosttail"


def test_an_empty_buffer_is_exported():
    with LegacyPinnedMemoryResource().allocate(0) as buffer:
        with memoryview(buffer) as view:
            assert (view.nbytes, view.shape, bytes(view)) == (0, (0,), b"")
            assert buffer.loans == 1
        assert buffer.loans == 0
        assert bytes(buffer) == b""


# --- sub-buffers -------------------------------------------------------------------------------------------------

SLICES = [
    slice(None),
    slice(0, SIZE),
    slice(16, 32),
    slice(16, None),
    slice(None, 16),
    slice(-16, None),
    slice(-SIZE - 5, 5),
    slice(None, -1),
    slice(SIZE - 1, SIZE + 10),
    slice(0, 10**30),
    slice(-(10**30), 10**30),
    slice(SIZE, None),
    slice(10, 10),
    slice(10, 5),
    slice(2 * SIZE, 3 * SIZE),
    slice(3, 9, 1),
    slice(3, 9, None),
]


@pytest.mark.parametrize("cut", SLICES, ids=lambda cut: f"{cut.start}:{cut.stop}:{cut.step}")
def test_a_sub_buffer_covers_what_a_slice_of_bytes_does(plain, cut):
    start, stop, _ = cut.indices(SIZE)
    part = plain[cut]
    expected = PATTERN[cut]
    assert part.size == len(expected)
    if expected:
        assert part.handle == plain.handle + start
        assert stop - start == len(expected)
        assert read(part.handle, part.size) == expected
    assert (part.ownership, part.transferred_to) == (Ownership.BORROWED, None)
    assert part.owner is plain
    assert part.close() is CloseResult.DONE
    assert plain.loans == 0


def test_the_ends_of_a_slice_may_be_any_integers(plain):
    class Index:
        def __index__(self):
            return 8

    part = plain[Index() : 16]
    assert (part.handle, part.size) == (plain.handle + 8, 8)
    part.close()


@pytest.mark.parametrize(
    "cut", [slice(None, None, 2), slice(0, 8, -1), slice(None, None, -1), slice(0, 8, 3)]
)
def test_a_step_is_refused(plain, cut):
    with pytest.raises(ValueError):
        plain[cut]
    assert plain.loans == 0


def test_a_step_of_zero_is_refused(plain):
    with pytest.raises(ValueError):
        plain[0:8:0]
    assert plain.loans == 0


@pytest.mark.parametrize("key", [0, -1, SIZE, None, "0", 1.0, (0, 1), (slice(0, 1), slice(0, 1)), True, ...])
def test_only_slices_make_sub_buffers(plain, key):
    with pytest.raises(TypeError):
        plain[key]
    assert plain.loans == 0


@pytest.mark.parametrize("cut", [slice(0.0, 8), slice("0", 8), slice(0, None, 1.0)])
def test_the_ends_of_a_slice_must_be_integers(plain, cut):
    with pytest.raises(TypeError):
        plain[cut]
    assert plain.loans == 0


def test_a_buffer_is_neither_iterated_nor_written_by_index(plain):
    with pytest.raises(TypeError):
        list(plain)
    with pytest.raises(TypeError):
        plain[0:4] = b"1234"
    with pytest.raises(TypeError):
        del plain[0:4]
    assert plain.loans == 0


def test_a_sub_buffer_is_one_loan_while_it_is_open(plain):
    parts = [plain[index : index + 16] for index in range(3)]
    assert plain.loans == 3
    parts[0].close()
    parts[0].close()
    assert plain.loans == 2
    with parts[1]:
        pass
    assert plain.loans == 1
    parts.clear()
    assert plain.loans == 0
    part = plain[0:8]
    cycle = [part]
    cycle.append(cycle)
    del part, cycle
    gc.collect()
    assert plain.loans == 0


def test_a_sub_buffer_keeps_its_parent(source):
    buffer = source.allocate()
    fill(buffer.handle, source.size, seed=1)
    address = buffer.handle
    part = buffer[4:8]
    del buffer
    gc.collect()
    assert still_allocated(address)
    assert read(part.handle, 4) == read(address + 4, 4)
    part.close()
    del part
    gc.collect()
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_a_sub_buffer_tells_what_its_parent_is(source):
    with source.allocate() as buffer:
        with buffer[16:32] as part:
            for name in ("is_device_accessible", "is_host_accessible", "is_managed"):
                assert getattr(part, name) == getattr(buffer, name)
            assert part.memory_resource is None
            if source.has_device:
                assert part.device_id == buffer.device_id
            assert "BORROWED" in repr(part)


def test_sub_buffers_of_sub_buffers(plain):
    outer = plain[100:200]
    inner = outer[10:20]
    innermost = inner[-3:]
    assert innermost.handle == plain.handle + 117
    assert read(innermost.handle, 3) == PATTERN[117:120]
    assert (inner.owner, innermost.owner) == (outer, inner)
    assert (plain.loans, outer.loans, inner.loans) == (1, 1, 1)
    assert outer.close() is CloseResult.LENT
    assert (outer.ownership, outer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
    assert plain.loans == 1, "what looks through the closed one still looks at the memory"
    assert inner.close() is CloseResult.LENT
    assert read(innermost.handle, 3) == PATTERN[117:120]
    assert innermost.close() is CloseResult.DONE
    assert plain.loans == 0


def test_a_sub_buffer_owns_nothing_that_could_be_given(plain, resource):
    part = plain[:16]
    with pytest.raises(OwnershipError, match="BORROWED"):
        part.detach()
    with pytest.raises(OwnershipError, match="BORROWED"):
        part.move_to(plain.memory_resource)
    with pytest.raises(OwnershipError, match="BORROWED"):
        resource.modify_allocation(part, GRANULE)
    part.close()


@pytest.mark.parametrize("how", ["closed", "detached"])
def test_a_closed_buffer_has_no_sub_buffers(source, how):
    buffer = source.allocate()
    allocation = buffer.detach() if how == "detached" else buffer.close()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
        buffer[0:8]
    if how == "detached":
        Buffer.adopt(allocation).close()


def test_a_sub_buffer_of_pinned_memory_is_exported_itself(pinned):
    part = pinned[100:110]
    with memoryview(part) as view:
        assert bytes(view) == PATTERN[100:110]
        assert (part.loans, pinned.loans) == (1, 1)
        assert part.close() is CloseResult.LENT
        assert bytes(view) == PATTERN[100:110]
        assert pinned.loans == 1
    assert pinned.loans == 0


def test_equal_sub_buffers(plain):
    with plain[:] as whole, plain[0:8] as part, plain[0:8] as same:
        assert whole == plain
        assert hash(whole) == hash(plain)
        assert part == same
        assert part != plain


# --- views with an array interface -------------------------------------------------------------------------------


def test_a_view_of_device_memory(plain):
    with plain.array_view() as view:
        interface = view.__cuda_array_interface__
        assert interface["data"] == (plain.handle, False)
        assert (interface["typestr"], interface["shape"]) == ("|u1", (SIZE,))
        assert interface.get("strides") is None
        assert interface["version"] == 3
        assert plain.loans == 1
        with pytest.raises(AttributeError):
            _ = view.__array_interface__
        assert not hasattr(view, "__array_interface__")
    assert plain.loans == 0


def test_a_view_of_pinned_memory_is_for_both(pinned):
    with pinned.array_view() as view:
        for interface in (view.__cuda_array_interface__, view.__array_interface__):
            assert interface["data"] == (pinned.handle, False)
            assert (interface["typestr"], interface["shape"]) == ("|u1", (SIZE,))
            assert interface["version"] == 3
        assert pinned.loans == 1


def test_a_view_of_memory_that_no_device_reaches():
    block = ctypes.create_string_buffer(64)
    with Buffer.from_handle(ctypes.addressof(block), 64, owner=block) as buffer:
        with buffer.array_view("<u4") as view:
            assert view.__array_interface__["data"] == (ctypes.addressof(block), False)
            assert view.__array_interface__["shape"] == (16,)
            with pytest.raises(AttributeError):
                _ = view.__cuda_array_interface__


@pytest.mark.parametrize(
    ("typestr", "shape", "expected"),
    [
        ("|u1", None, (SIZE,)),
        ("<f4", None, (SIZE // 4,)),
        ("<c16", None, (SIZE // 16,)),
        ("|b1", (3,), (3,)),
        ("<U4", None, (SIZE // 16,)),
        ("|S4", None, (SIZE // 4,)),
        ("|V8", None, (SIZE // 8,)),
        ("<M8", None, (SIZE // 8,)),
        ("<f8", (2, 3), (2, 3)),
        ("<i2", (SIZE // 2,), (SIZE // 2,)),
        ("<i2", (4, SIZE // 8), (4, SIZE // 8)),
        ("<u8", (), ()),
        ("<u8", (0,), (0,)),
        ("<u8", (5, 0, 7), (5, 0, 7)),
        ("<u8", [2, 2], (2, 2)),
    ],
)
def test_type_and_shape(plain, typestr, shape, expected):
    with plain.array_view(typestr, shape) as view:
        interface = view.__cuda_array_interface__
        assert (interface["typestr"], interface["shape"]) == (typestr, expected)
        assert type(interface["shape"]) is tuple
        assert all(type(extent) is int for extent in interface["shape"])


@pytest.mark.parametrize(
    ("typestr", "shape"),
    [
        ("<f8", (SIZE // 8 + 1,)),
        ("|u1", (SIZE + 1,)),
        ("<f4", (2, SIZE // 8 + 1)),
        ("|u1", (2**63,)),
        ("<f8", (2**31, 2**31)),
        ("<f8", (2**32, 2**32)),
        ("|u1", (-1,)),
        ("|u1", (-1, -1)),
        ("|V24", None),
        ("<f4x", None),
        ("f", None),
        ("", None),
        ("<u0", None),
        ("<U4", (SIZE // 16 + 1,)),
        ("<U0", None),
    ],
)
def test_a_view_that_does_not_fit_is_refused(plain, typestr, shape):
    with pytest.raises(ValueError):
        plain.array_view(typestr, shape)
    assert plain.loans == 0


def test_a_view_that_leaves_a_rest_is_refused(plain):
    with plain[0:10] as part:
        with pytest.raises(ValueError):
            part.array_view("<f4")
        with part.array_view("<f4", (2,)) as view:
            assert view.__cuda_array_interface__["shape"] == (2,)
        assert part.loans == 0


@pytest.mark.parametrize(("typestr", "shape"), [(4, None), (None, None), ("|u1", (1.0,)), ("|u1", "12")])
def test_odd_types_and_shapes_are_refused(plain, typestr, shape):
    with pytest.raises((TypeError, ValueError)):
        plain.array_view(typestr, shape)
    assert plain.loans == 0


@pytest.mark.parametrize("typestr", ["|O8", "|t8", "<x4", "|T16"])
def test_a_view_is_of_plain_bytes(plain, typestr):
    """What stands in the bytes of an object is an address, which NumPy would follow."""
    with pytest.raises(ValueError, match=re.escape(f"got {typestr!r}")):
        plain.array_view(typestr)
    assert plain.loans == 0


def test_a_view_of_characters_shows_no_other_memory(pinned):
    """NumPy counts characters of four bytes."""
    for shape in (None, (SIZE // 16,)):
        with pinned.array_view("<U4", shape) as view:
            assert numpy.asarray(view).nbytes == SIZE


def test_a_view_takes_a_numpy_type(plain):
    for dtype, typestr in ((numpy.dtype("float32"), "<f4"), (numpy.dtype("complex64"), "<c8")):
        with plain.array_view(dtype, shape=(4,)) as view:
            assert view.__cuda_array_interface__["typestr"] == typestr


def test_numpy_takes_a_view_and_keeps_it(pinned):
    view = pinned.array_view("<u4", (8, 16))
    array = numpy.asarray(view)
    assert (array.shape, array.dtype, array.ctypes.data) == ((8, 16), numpy.dtype("<u4"), pinned.handle)
    array[0, 0] = 0x04030201
    assert read(pinned.handle, 4) == b"\1\2\3\4"
    del view
    gc.collect()
    assert pinned.loans == 1, "the array is the loan now"
    part = array[1]
    del array
    gc.collect()
    assert part.tobytes() == PATTERN[64:128]
    del part
    gc.collect()
    assert pinned.loans == 0


@pytest.mark.parametrize("how", ["close", "with", "drop", "cycle"])
def test_the_life_of_a_view_is_the_loan(plain, how):
    view = plain.array_view()
    assert plain.loans == 1
    if how == "close":
        view.close()
        assert plain.loans == 0
        view.close()
    elif how == "with":
        with view as entered:
            assert entered is view
        assert plain.loans == 0
    elif how == "cycle":
        cycle = [view]
        cycle.append(cycle)
        del cycle
    if how in ("close", "with"):
        with pytest.raises(RuntimeError):
            _ = view.__cuda_array_interface__
    del view
    gc.collect()
    assert plain.loans == 0


def test_a_closed_view_of_pinned_memory_has_no_interface(pinned):
    view = pinned.array_view()
    view.close()
    for name in ("__cuda_array_interface__", "__array_interface__"):
        with pytest.raises(RuntimeError):
            getattr(view, name)


def test_a_buffer_itself_has_no_array_interface(pinned):
    """A consumer of the dictionary never says when it is done: the life of a view does."""
    assert not hasattr(pinned, "__cuda_array_interface__")
    assert not hasattr(pinned, "__array_interface__")


def test_a_view_goes_on_when_the_buffer_was_closed(source):
    buffer = source.allocate()
    address = buffer.handle
    view = buffer.array_view()
    assert buffer.close() is CloseResult.LENT
    assert view.__cuda_array_interface__["data"] == (address, False)
    assert still_allocated(address)
    view.close()
    assert given_back(address)
    assert source.frees() in (None, 1)


def test_a_closed_buffer_has_no_views(source):
    buffer = source.allocate()
    buffer.close()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
        buffer.array_view()


def test_a_view_of_nothing(device):
    with _SynchronousMemoryResource(0).allocate(0) as buffer:
        with buffer.array_view("<f4") as view:
            interface = view.__cuda_array_interface__
            assert (interface["shape"], interface["data"][0]) == ((0,), 0)


def test_a_view_of_a_sub_buffer_starts_at_its_offset(pinned):
    with pinned[16:48] as part:
        with part.array_view("<u8") as view:
            assert view.__cuda_array_interface__["data"] == (pinned.handle + 16, False)
            assert view.__array_interface__["shape"] == (4,)
