# SPDX-License-Identifier: Apache-2.0
"""``StridedMemoryView``: views of buffers and of arrays with an array interface, and handing them on."""

import ctypes
import gc
import itertools

import pytest

import dlpack_peer
from buffer_kinds import SOURCES
from cuda.bindings import driver
from cuda.core import Buffer, CloseResult, CUDAError, LegacyPinnedMemoryResource, OwnershipError
from cuda.core._layout import _StridedLayout
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core.utils import StridedMemoryView, args_viewable_as_strided_memory
from dlpack_peer import CPU, CUDA, CUDA_HOST, READ_ONLY, look, take
from held_work import Gate
from support import attempt, check, child_output, given_back, read, still_allocated, write

numpy = pytest.importorskip("numpy")
pytestmark = pytest.mark.usefixtures("device")

SIZE = 4096
NOT_READY = driver.CUresult.CUDA_ERROR_NOT_READY


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


@pytest.fixture
def plain(device):
    with _SynchronousMemoryResource(0).allocate(SIZE) as buffer:
        yield buffer


@pytest.fixture
def pinned(device):
    with LegacyPinnedMemoryResource().allocate(SIZE) as buffer:
        yield buffer


@pytest.fixture
def streams(device):
    made = [device.create_stream() for _ in range(2)]
    yield made
    for stream in made:
        stream.close()


# --- views of buffers --------------------------------------------------------------------------------------------


def test_a_view_of_a_buffer(source):
    buffer = source.allocate()
    view = StridedMemoryView.from_buffer(buffer, (4, 8), dtype=numpy.dtype("f4"))
    assert (view.ptr, view.shape, view.strides, view.size) == (buffer.handle, (4, 8), None, 32)
    assert view.dtype == numpy.float32
    assert (view.device_id, view.is_device_accessible, view.readonly) == (0, True, False)
    assert view.exporting_obj is buffer
    assert view.__dlpack_device__() == buffer.__dlpack_device__()
    assert buffer.loans == 1
    view.close()
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("end", ["close", "with", "drop"])
def test_a_view_is_a_loan(source, end):
    buffer = source.allocate()
    address = buffer.handle
    view = StridedMemoryView.from_buffer(buffer, (16,), itemsize=1)
    write(address, b"kept")
    assert buffer.close() is CloseResult.LENT
    assert read(view.ptr, 4) == b"kept"
    if end == "close":
        view.close()
    elif end == "with":
        with view:
            pass
    else:
        del view
    assert given_back(address)
    assert source.frees() in (None, 1)


@pytest.mark.parametrize(
    "order", list(itertools.permutations(["buffer", "view", "part", "taken"])), ids="-".join
)
def test_the_memory_stays_until_everything_has_ended(order):
    buffer = LegacyPinnedMemoryResource().allocate(SIZE)
    address = buffer.handle
    view = StridedMemoryView.from_buffer(buffer, (4, 8), dtype="f4")
    part = view.view(view._layout[1:, 2:])
    taken = take(part)
    assert taken.data == address + 4 * (8 + 2)
    assert (taken.shape, taken.strides) == ((3, 6), (8, 1))
    assert buffer.loans == 1
    ends = {"buffer": buffer.close, "view": view.close, "part": part.close, "taken": taken.delete}
    for name in order:
        assert still_allocated(address)
        ends[name]()
    assert given_back(address)


def test_a_closed_view_says_so(plain):
    view = StridedMemoryView.from_buffer(plain, (4,), dtype="f4")
    view.close()
    view.close()
    assert (view.is_closed, view.ptr, view.exporting_obj, view.shape) == (True, 0, None, (4,))
    for use in (view.__dlpack__, view.__dlpack_device__, view.view, view.__enter__):
        with pytest.raises(RuntimeError, match="StridedMemoryView has been closed"):
            use()
    assert "ptr=0" in repr(view)


def test_a_view_of_a_slice(plain):
    with plain[128:256] as part:
        view = StridedMemoryView.from_buffer(part, (32,), dtype="f4")
        assert view.ptr == plain.handle + 128
        with pytest.raises(ValueError, match="at least 132 bytes, got 128 bytes"):
            StridedMemoryView.from_buffer(part, (33,), dtype="f4")
        view.close()


WRONG = [
    (((2,),), {}, ValueError, "Either itemsize or dtype must be specified"),
    (
        ((2,),),
        {"dtype": "f4", "itemsize": 8},
        ValueError,
        r"itemsize \(8\) does not match dtype.itemsize \(4\)",
    ),
    (((2,),), {"itemsize": 0}, ValueError, "itemsize must be positive"),
    (((2,),), {"itemsize": "4"}, TypeError, "'4'"),
    (((2,),), {"dtype": "nonsense"}, TypeError, "nonsense"),
    (([2],), {"itemsize": 4}, TypeError, "tuple"),
    ((5,), {"itemsize": 4}, TypeError, "tuple"),
    (((-1,),), {"itemsize": 4}, ValueError, "Extents must be non-negative"),
    (((2, 3), (3,)), {"itemsize": 4}, ValueError, "same length as shape"),
    (((2, 3), (-3, 1)), {"itemsize": 4}, ValueError, "min_offset is -3"),
    (((1025,),), {"itemsize": 4}, ValueError, "Expected at least 4100 bytes, got 4096 bytes"),
    (((2, 3), (2000, 1)), {"itemsize": 4}, ValueError, "too small for the layout"),
    (((2**62, 8),), {"itemsize": 4}, OverflowError, "too large"),
]


@pytest.mark.parametrize(("arguments", "keywords", "error", "text"), WRONG, ids=range(len(WRONG)))
def test_bad_input_takes_no_loan(plain, driver_watch, arguments, keywords, error, text):
    with driver_watch.no_call():
        with pytest.raises(error, match=text):
            StridedMemoryView.from_buffer(plain, *arguments, **keywords)
    assert plain.loans == 0


@pytest.mark.parametrize("thing", [None, b"bytes", 7])
def test_only_buffers_are_buffers(thing):
    with pytest.raises(TypeError, match="must be a Buffer"):
        StridedMemoryView.from_buffer(thing, (1,), itemsize=1)


def test_a_closed_buffer_has_no_views(plain):
    buffer = LegacyPinnedMemoryResource().allocate(16)
    buffer.close()
    with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
        StridedMemoryView.from_buffer(buffer, (1,), itemsize=1)


# --- other layouts and types -------------------------------------------------------------------------------------


def test_viewing_with_nothing_new_is_the_same_view(plain):
    with StridedMemoryView.from_buffer(plain, (4, 8), dtype="f4") as view:
        assert view.view() is view


def test_another_type_and_another_layout(plain):
    with StridedMemoryView.from_buffer(plain, (4, 8), dtype="f4") as view:
        assert view.view(dtype="i4").dtype == numpy.int32
        packed = view.view(view._layout.repacked(8), "c8")
        assert (packed.shape, packed.dtype, packed._layout.itemsize) == ((4, 4), numpy.complex64, 8)
        reversed_ = view.view(view._layout[::-1])
        assert (reversed_.strides, reversed_.ptr) == ((-8, 1), plain.handle)
        assert look(reversed_.__dlpack__(stream=-1)).data == plain.handle + 3 * 32
        assert plain.loans == 1
    assert plain.loans == 1, "each view keeps the memory by itself"
    del packed, reversed_
    assert plain.loans == 0


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((None, "f8"), ValueError, r"dtype's itemsize \(8\) does not match the layout's itemsize \(4\)"),
        ((_StridedLayout((4,), None, 8),), ValueError, r"dtype's itemsize \(4\)"),
        ((_StridedLayout((2000,), None, 4),), ValueError, "at least 8000 bytes, got 4096 bytes"),
        ((_StridedLayout((2,), (-1,), 4),), ValueError, "negative memory offsets"),
        (("layout",), TypeError, "'layout'"),
        ((None, "nonsense"), TypeError, "nonsense"),
    ],
)
def test_a_view_that_does_not_fit(plain, arguments, error, text):
    with StridedMemoryView.from_buffer(plain, (4, 8), dtype="f4") as view:
        with pytest.raises(error, match=text):
            view.view(*arguments)


def test_a_view_stays_within_the_array_it_was_made_of():
    array = numpy.arange(12, dtype="i4").reshape(3, 4)[::-1, 1:]
    view = StridedMemoryView.from_dlpack(array, -1)
    assert numpy.from_dlpack(view.view(view._layout[1:])).tolist() == array[1:].tolist()
    for layout in (_StridedLayout((4,), None, 4), _StridedLayout((4, 1), (-4, 1), 4)):
        with pytest.raises(ValueError, match="the memory has those from -32 to 12"):
            view.view(layout)


# --- handing on --------------------------------------------------------------------------------------------------


def test_numpy_reads_and_writes_through_a_view(pinned):
    view = StridedMemoryView.from_buffer(pinned, (4, 8), (1, 4), dtype="i2")
    array = numpy.from_dlpack(view)
    assert (array.shape, array.strides, array.dtype) == ((4, 8), (2, 8), numpy.int16)
    array[:] = numpy.arange(32).reshape(8, 4).T
    assert read(pinned.handle, 64) == numpy.arange(32, dtype="i2").tobytes()
    view.close()
    assert pinned.loans == 1
    del array
    assert pinned.loans == 0


@pytest.mark.parametrize("dtype", ["i1", "u8", "f2", "f4", "f8", "c8", "c16", "?"])
def test_types_go_there_and_back(pinned, dtype):
    with StridedMemoryView.from_buffer(pinned, (3,), dtype=dtype) as view:
        assert numpy.from_dlpack(view).dtype == numpy.dtype(dtype)
        with StridedMemoryView.from_dlpack(view, -1) as again:
            assert again.dtype == numpy.dtype(dtype)
    gc.collect()
    assert pinned.loans == 0


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        ("V8", "Unsupported dtype for DLPack export"),
        ("M8[ns]", "Unsupported dtype"),
        ("S3", "Unsupported dtype"),
        (">f4", "Non-native-endian dtypes are not supported for DLPack export"),
    ],
)
def test_types_that_dlpack_lacks(plain, dtype, text):
    with StridedMemoryView.from_buffer(plain, (2,), dtype=dtype) as view:
        with pytest.raises(BufferError, match=text):
            view.__dlpack__()
    assert plain.loans == 0


def test_a_view_without_a_type_is_not_exported(plain):
    with StridedMemoryView.from_buffer(plain, (2,), itemsize=4) as view:
        assert view.dtype is None
        with pytest.raises(BufferError, match="without dtype information"):
            view.__dlpack__()
        taken = take(view.view(dtype="f4"), stream=-1)
        taken.delete()


def test_read_only_views(pinned):
    view = StridedMemoryView.from_buffer(pinned, (2,), dtype="f4", is_readonly=True)
    with pytest.raises(BufferError, match="read-only"):
        view.__dlpack__()
    assert look(view.__dlpack__(max_version=(1, 0))).flags == READ_ONLY
    assert view.view(dtype="i4").readonly
    array = numpy.from_dlpack(view)
    assert not array.flags.writeable
    again = StridedMemoryView.from_dlpack(array, None)  # NumPy says that it is pinned, and takes no stream
    assert again.readonly
    del array, again
    view.close()
    gc.collect()
    assert pinned.loans == 0


@pytest.mark.parametrize(
    ("keywords", "error", "text"),
    [
        ({"copy": True}, BufferError, "copy=True"),
        ({"copy": 1}, TypeError, "got 1"),
        ({"dl_device": (CPU, 0)}, BufferError, "dl_device"),
        ({"dl_device": (CUDA, 9)}, BufferError, "dl_device"),
        ({"dl_device": "cpu"}, TypeError, "cpu"),
        ({"stream": 0}, ValueError, "stream=0"),
        ({"stream": -2}, ValueError, "-2"),
        ({"stream": "1"}, TypeError, "'1'"),
        ({"max_version": (1,)}, BufferError, "Expected max_version"),
    ],
)
def test_bad_input_of_an_export(plain, driver_watch, keywords, error, text):
    with StridedMemoryView.from_buffer(plain, (2,), dtype="f4") as view:
        with driver_watch.no_call():
            with pytest.raises(error, match=text):
                view.__dlpack__(**keywords)
        assert plain.loans == 1


def test_pinned_memory_for_the_host(pinned):
    with StridedMemoryView.from_buffer(pinned, (2,), dtype="f4") as view:
        assert view.__dlpack_device__() == (CUDA_HOST, 0)
        assert look(view.__dlpack__(dl_device=(CPU, 0))).device == (CPU, 0)


@pytest.mark.parametrize("made", ["from_buffer", "from_dlpack", "of a view"])
def test_a_consumer_of_a_view_is_ordered_with_the_buffers_streams(device, streams, made):
    with _SynchronousMemoryResource(0).allocate(SIZE, stream=streams[0]) as buffer:
        view = (
            StridedMemoryView.from_buffer(buffer, (SIZE,), dtype="i1")
            if made == "from_buffer"
            else StridedMemoryView.from_dlpack(buffer, -1)
        )
        if made == "of a view":
            view = StridedMemoryView.from_dlpack(view, -1)
        with Gate(streams[0]) as gate:
            taken = take(view, stream=int(streams[1].handle))
            assert driver.cuStreamQuery(int(streams[1].handle))[0] == NOT_READY
            gate.open()
        taken.delete()
        view.close()
        allocation = buffer.detach()
        assert [int(stream.handle) for stream in allocation.streams] == [
            int(stream.handle) for stream in streams
        ]
        Buffer.adopt(allocation).close()


# --- array interfaces --------------------------------------------------------------------------------------------


class Interface:
    """An array with ``__cuda_array_interface__``."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = interface


def interface_of(buffer, **changes):
    return Interface(
        **{"shape": (2, 3), "typestr": "<f4", "data": (buffer.handle, False), "version": 3, **changes}
    )


def test_a_view_through_the_cuda_array_interface(plain):
    array = interface_of(plain, strides=(4, 8))
    view = StridedMemoryView.from_cuda_array_interface(array, -1)
    assert (view.ptr, view.shape, view.strides, view.dtype) == (plain.handle, (2, 3), (1, 2), numpy.float32)
    assert (view.device_id, view.is_device_accessible, view.readonly) == (0, True, False)
    assert view.exporting_obj is array
    assert view.__dlpack_device__() == (CUDA, 0)
    taken = take(view, stream=-1)
    assert (taken.data, taken.strides) == (plain.handle, (1, 2))
    taken.delete()


def test_the_interface_of_an_array_view_of_a_buffer(source):
    with source.allocate() as buffer, buffer.array_view("<i4", (2, 2)) as array:
        with StridedMemoryView.from_any_interface(array, -1) as view:
            assert (view.ptr, view.shape, view.dtype) == (buffer.handle, (2, 2), numpy.int32)
            assert view.__dlpack_device__() == buffer.__dlpack_device__()


def test_an_empty_array_has_no_address(plain):
    view = StridedMemoryView.from_cuda_array_interface(interface_of(plain, shape=(0,), data=(0, True)), -1)
    assert (view.ptr, view.shape, view.readonly, view.device_id) == (0, (0,), True, 0)


WRONG_INTERFACE = [
    ({"version": "3"}, TypeError, "version of the .* must be an integer, got '3'"),
    ({"version": 3.0}, TypeError, "version of the .* must be an integer, got 3.0"),
    ({"version": None}, TypeError, "version of the .* must be an integer, got None"),
    ({"typestr": None}, TypeError, "typestr of the .* must be a str .*, got None"),
    ({"typestr": 4}, TypeError, "typestr of the .* must be a str .*, got 4"),
    ({"typestr": ["<f4"]}, TypeError, r"typestr of the .* must be a str .*, got \['<f4'\]"),
    ({"version": 2}, BufferError, "v3 or above"),
    ({"mask": object()}, BufferError, "mask is not supported"),
    ({"strides": (13, 4)}, ValueError, "divisible by itemsize"),
    ({"strides": (4,)}, ValueError, "same length as shape"),
    ({"strides": [12, 4]}, TypeError, "Expected tuple"),
    ({"typestr": "<x4"}, TypeError, "x4"),
    ({"typestr": "|O8"}, ValueError, r"typestr must be of plain bytes, got '\|O8'"),
    ({"shape": (-1, 2)}, ValueError, "non-negative"),
    ({"shape": [2, 3]}, TypeError, "Expected tuple"),
    ({"shape": (2**62, 8)}, OverflowError, "too large"),
    ({"data": 5}, TypeError, "got 5"),
    ({"data": (1,)}, TypeError, "1,"),
    ({"data": ("x", False)}, TypeError, "'x'"),
    ({"data": (-1, False)}, ValueError, "-1"),
    ({"data": (2**64, False)}, ValueError, str(2**64)),
]


@pytest.mark.parametrize(("changes", "error", "text"), WRONG_INTERFACE, ids=range(len(WRONG_INTERFACE)))
@pytest.mark.parametrize("kind", ["cuda", "host"])
def test_a_wrong_interface(plain, driver_watch, kind, changes, error, text):
    array = interface_of(plain, **changes)
    if kind == "host":
        array.__array_interface__ = array.__cuda_array_interface__
    with driver_watch.no_call(), pytest.raises(error, match=text):
        if kind == "cuda":
            StridedMemoryView.from_cuda_array_interface(array, -1)
        else:
            StridedMemoryView.from_array_interface(array)


@pytest.mark.parametrize("lacking", ["shape", "typestr", "data", "version"])
def test_an_interface_that_lacks_something(plain, lacking):
    array = interface_of(plain)
    del array.__cuda_array_interface__[lacking]
    with pytest.raises(ValueError, match=f"lacks '{lacking}'"):
        StridedMemoryView.from_cuda_array_interface(array, -1)
    array.__cuda_array_interface__ = None
    with pytest.raises(TypeError, match="must be a dict"):
        StridedMemoryView.from_cuda_array_interface(array, -1)


@pytest.mark.provokes_refusals
def test_an_address_that_the_driver_does_not_know():
    with pytest.raises((CUDAError, BufferError)):
        StridedMemoryView.from_cuda_array_interface(
            Interface(shape=(2,), typestr="<f4", data=(4096, False), version=3), -1
        )


def test_the_streams_of_an_interface(plain, streams):
    first, second = (int(stream.handle) for stream in streams)
    with pytest.raises(BufferError, match=r"stream=None is ambiguous with view\(\)"):
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=first), None)
    with Gate(streams[0]) as gate:
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=first), -1)
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=None), second)
        StridedMemoryView.from_cuda_array_interface(interface_of(plain), second)
        assert driver.cuStreamQuery(second)[0] != NOT_READY
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=first), second)
        assert driver.cuStreamQuery(second)[0] == NOT_READY
        gate.open()
    check(driver.cuStreamSynchronize(second))
    for default in (1, 2):
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=default), second)
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=first), default)
        check(driver.cuStreamSynchronize(default))
    check(driver.cuStreamSynchronize(second))
    with pytest.raises(ValueError, match="ambiguous"):
        StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=0), second)
    StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=0), -1)


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_every_call_of_ordering_an_interface_fails(plain, streams, driver_watch):
    first, second = (int(stream.handle) for stream in streams)

    def view():
        return StridedMemoryView.from_cuda_array_interface(interface_of(plain, stream=first), second)

    calls = driver_watch.calls_of(view)
    assert "cuStreamWaitEvent" in calls
    for name in calls.keys() - {"cuCtxPopCurrent", "cuEventDestroy"}:
        for nth in range(1, calls[name] + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN"):
                _, error = attempt(view, CUDAError)
            assert error is not None, name
    view()


def test_numpy_through_the_array_interface():
    array = numpy.arange(12, dtype="f4").reshape(3, 4).T[::-1]
    view = StridedMemoryView.from_array_interface(array)
    assert (view.ptr, view.shape, view.strides) == (array.ctypes.data, (4, 3), (-1, 4))
    assert (view.dtype, view.device_id, view.is_device_accessible) == (numpy.float32, -1, False)
    again = numpy.from_dlpack(view)
    assert again.tolist() == array.tolist()
    array = numpy.zeros(3)
    array.flags.writeable = False
    assert StridedMemoryView.from_array_interface(array).readonly


def test_numpy_through_dlpack():
    array = numpy.arange(12, dtype="i8").reshape(3, 4)
    view = StridedMemoryView.from_any_interface(array, -1)
    assert (view.ptr, view.shape, view.dtype) == (array.ctypes.data, (3, 4), numpy.int64)
    assert view.strides in (None, (4, 1))  # an older NumPy says nothing of strides in C order
    assert numpy.from_dlpack(view).tolist() == array.tolist()


@pytest.mark.parametrize("thing", [None, 7, "text", b"bytes", bytearray(3)])
def test_what_is_no_array(thing):
    for way in (StridedMemoryView.from_dlpack, StridedMemoryView.from_cuda_array_interface):
        with pytest.raises(AttributeError):
            way(thing, -1)
    with pytest.raises(AttributeError):
        StridedMemoryView.from_array_interface(thing)
    with pytest.raises(BufferError, match="does not support any data exchange protocol"):
        StridedMemoryView.from_any_interface(thing, -1)


# --- the constructor, which is deprecated ------------------------------------------------------------------------


def test_the_constructor_warns_and_works(plain):
    with pytest.warns(DeprecationWarning, match="from_dlpack"):
        view = StridedMemoryView(numpy.zeros(3), -1)
    assert view.shape == (3,)
    with pytest.warns(DeprecationWarning, match="from_cuda_array_interface"):
        view = StridedMemoryView(interface_of(plain), -1)
    assert view.ptr == plain.handle
    with pytest.raises(BufferError, match="any data exchange protocol"):
        StridedMemoryView(7, -1)
    with pytest.warns(DeprecationWarning, match="empty"):
        view = StridedMemoryView()
    with pytest.raises(ValueError, match="Cannot infer layout"):
        view.shape  # noqa: B018
    with pytest.raises(RuntimeError, match="Cannot infer layout"):
        view.__dlpack__()
    assert repr(view) == "StridedMemoryView()"


def test_what_is_not_supported(plain):
    with StridedMemoryView.from_buffer(plain, (2,), dtype="f4") as view:
        for copy in (view.copy_from, view.copy_to):
            with pytest.raises(NotImplementedError, match="Sorry, not supported: copy_"):
                copy(view, None)
            with pytest.raises(TypeError, match="StridedMemoryView"):
                copy(7, None)
        for name in ("ptr", "shape", "readonly", "more"):
            with pytest.raises(AttributeError):
                setattr(view, name, 1)


# --- arguments of functions --------------------------------------------------------------------------------------


@args_viewable_as_strided_memory((0, 2))
def shapes(first, second, third, *, stream=-1):
    """Return what the two arrays look like."""
    return first.view(stream).shape, second, third.view(stream).shape


def test_arguments_of_functions(plain):
    assert shapes(numpy.zeros((2, 3)), "second", plain) == ((2, 3), "second", (SIZE,))
    assert shapes(interface_of(plain), None, numpy.zeros(1)) == ((2, 3), None, (1,))
    assert (shapes.__name__, shapes.__doc__) == ("shapes", "Return what the two arrays look like.")
    gc.collect()
    assert plain.loans == 0
    with pytest.raises(BufferError, match="any data exchange protocol"):
        shapes(numpy.zeros(1), 0, 7)
    with pytest.raises(IndexError):
        shapes(numpy.zeros(1), 0)
    for indices in (0, [0], (None,), ("0",), (0.0,)):
        with pytest.raises(TypeError, match="arg_indices"):
            args_viewable_as_strided_memory(indices)
    with pytest.raises(ValueError, match="arg_indices"):
        args_viewable_as_strided_memory((0, 0))


# --- consumers written in C --------------------------------------------------------------------------------------


class ExchangeApi(ctypes.Structure):
    """``DLPackExchangeAPI`` of DLPack 1.3."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        (
            "from_py_object",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p)),
        ),
        ("to_py_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))),
        (
            "tensor_from_py_object",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(dlpack_peer.Tensor)),
        ),
        (
            "current_work_stream",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)),
        ),
    )


@pytest.fixture
def api():
    capsule = StridedMemoryView.__dlpack_c_exchange_api__
    return ExchangeApi.from_address(dlpack_peer._pointer(capsule, b"dlpack_exchange_api"))


def test_the_exchange_table_lends(api, plain):
    assert (api.major, api.minor, api.prev_api) == (1, 3, None)
    view = StridedMemoryView.from_buffer(plain, (2, 3), dtype="f4")
    found = ctypes.c_void_p()
    assert api.from_py_object(view, ctypes.byref(found)) == 0
    taken = dlpack_peer.Taken(dlpack_peer.ManagedVersioned.from_address(found.value))
    assert (taken.data, taken.shape, taken.strides) == (plain.handle, (2, 3), (3, 1))
    view.close()
    assert plain.loans == 1
    taken.delete_in_foreign_thread()
    assert plain.loans == 0


def test_the_exchange_table_describes_without_a_loan(api, plain):
    view = StridedMemoryView.from_buffer(plain, (2, 3), dtype="f4")
    tensor = dlpack_peer.Tensor()
    for _ in range(2):
        assert api.tensor_from_py_object(view, ctypes.byref(tensor)) == 0
    assert (tensor.data, tensor.shape[:2], tensor.strides[:2]) == (plain.handle, [2, 3], [3, 1])
    assert (tensor.device_type, tensor.code, tensor.bits, tensor.lanes) == (CUDA, dlpack_peer.FLOAT, 32, 1)
    assert plain.loans == 1
    view.close()


def test_the_exchange_table_takes(api):
    producer = dlpack_peer.Producer((2, 3), version=(1, 0))
    made = ctypes.py_object()
    assert api.to_py_object(ctypes.addressof(producer.managed), ctypes.byref(made)) == 0
    view = made.value
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(view))  # the reference that the call has given
    assert isinstance(view, StridedMemoryView)
    assert (view.shape, view.exporting_obj, producer.deleted) == ((2, 3), None, 0)
    del made, view
    gc.collect()
    assert producer.deleted == 1


def test_the_exchange_table_refuses(api, plain):
    found, made = ctypes.c_void_p(), ctypes.py_object()
    for thing, error in ((7, TypeError), (plain, TypeError), (None, TypeError)):
        with pytest.raises(error):
            api.from_py_object(thing, ctypes.byref(found))
        with pytest.raises(error):
            api.tensor_from_py_object(thing, ctypes.byref(dlpack_peer.Tensor()))
    with StridedMemoryView.from_buffer(plain, (2,), itemsize=4) as view:
        with pytest.raises(BufferError, match="dtype"):
            api.from_py_object(view, ctypes.byref(found))
    with pytest.raises(RuntimeError, match="closed"):
        api.from_py_object(view, ctypes.byref(found))
    assert found.value is None
    producer = dlpack_peer.Producer(version=(2, 0))
    with pytest.raises(BufferError, match="version"):
        api.to_py_object(ctypes.addressof(producer.managed), ctypes.byref(made))
    assert producer.deleted == 0, "it is still the caller's"
    set_error = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
    told = []
    kept = set_error(lambda context, kind, text: told.append((kind, text)))
    allocate = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
    )(api.allocator)
    assert allocate(None, ctypes.addressof(found), None, ctypes.cast(kept, ctypes.c_void_p)) == -1
    assert told[0][0] == b"NotImplementedError"
    stream = ctypes.c_void_p(1)
    assert api.current_work_stream(CUDA, 0, ctypes.byref(stream)) == 0
    assert stream.value is None


# --- imports ---------------------------------------------------------------------------------------------------------


def test_views_import_no_numpy_before_a_type_is_asked_for():
    code = """
import sys
from cuda.core import Device, LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView
Device(0).set_current()
with LegacyPinnedMemoryResource().allocate(64) as buffer:
    with StridedMemoryView.from_buffer(buffer, (4,), itemsize=4) as view, \\
            StridedMemoryView.from_dlpack(buffer, -1) as bytes_:
        bytes_.__dlpack__()
        print(view.shape, bytes_.shape, "numpy" in sys.modules)
        print(bytes_.dtype, "numpy" in sys.modules)
"""
    assert child_output(code) == "(4,) (64,) False\nint8 True\n"
