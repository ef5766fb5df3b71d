# SPDX-License-Identifier: Apache-2.0
"""DLPack imports: what exporters do, right and wrong, and that their deleter is called once."""

import ctypes
import gc
import sys

import numpy
import pytest

import dlpack_peer
from buffer_kinds import SOURCES
from cuda.core import LegacyPinnedMemoryResource
from cuda.core.utils import StridedMemoryView
from dlpack_peer import (
    BFLOAT,
    BOOL,
    COMPLEX,
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    FLOAT,
    INT,
    READ_ONLY,
    UINT,
    Producer,
)
from support import child_output, race

pytestmark = pytest.mark.usefixtures("device")

VERSIONS = [None, (1, 0), (1, 3), (1, 99)]


def view_of(producer, stream_ptr=-1):
    return StridedMemoryView.from_dlpack(producer, stream_ptr)


def seen_by(producer):
    """View a producer and return what is seen; the view is gone then."""
    view = view_of(producer)
    return (
        view.ptr,
        view.shape,
        view.strides,
        view._layout.itemsize,
        view.device_id,
        view.is_device_accessible,
    )


# --- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fields_are_read(version):
    producer = Producer((2, 3), (6, 2), (INT, 16, 1), version=version)
    view = view_of(producer)
    assert (view.ptr, view.shape, view.strides) == (ctypes.addressof(producer.memory), (2, 3), (6, 2))
    assert (view._layout.itemsize, view.size, view.readonly) == (2, 6, False)
    assert (view.device_id, view.is_device_accessible) == (-1, False)
    assert view.exporting_obj is producer
    assert producer.deleted == 0
    del view
    assert producer.deleted == 1
    assert producer.asked == [{"max_version": (1, 0)}]


@pytest.mark.parametrize("version", VERSIONS)
def test_dl_04_the_byte_offset_counts(version):
    producer = Producer((8,), None, (UINT, 8, 1), byte_offset=100, version=version)
    producer.memory[100:108] = b"sliced!!"
    with view_of(producer) as view:
        assert view.ptr == ctypes.addressof(producer.memory) + 100
        assert ctypes.string_at(view.ptr, 8) == b"sliced!!"
    assert producer.deleted == 1


@pytest.mark.parametrize(
    ("device", "seen"),
    [
        ((CPU, 0), (-1, False)),
        ((CUDA, 1), (1, True)),
        ((CUDA_HOST, 0), (0, True)),
        ((CUDA_MANAGED, 0), (0, True)),
    ],
)
def test_where_the_memory_is(device, seen):
    producer = Producer(device=device)
    assert seen_by(producer)[4:] == seen
    assert producer.asked[0].get("stream") == (None if device[0] == CPU else -1)
    assert producer.deleted == 1


@pytest.mark.parametrize(("given", "passed"), [(-1, -1), (0, 1), (1, 1), (2, 2), (0x1234, 0x1234)], ids=str)
def test_the_exporter_is_given_the_stream(given, passed):
    producer = Producer(device=(CUDA, 0))
    view_of(producer, given)
    assert producer.asked == [{"max_version": (1, 0), "stream": passed}]


@pytest.mark.parametrize("device", [CPU, CUDA, CUDA_HOST, CUDA_MANAGED])
def test_no_stream_is_ambiguous_for_some_memory(device):
    producer = Producer(device=(device, 0))
    if device in (CPU, CUDA):
        with pytest.raises(BufferError, match=r"stream=None is ambiguous with view\(\)"):
            view_of(producer, None)
        assert producer.asked == []
    else:
        view_of(producer, None)
        assert producer.asked == [{"max_version": (1, 0), "stream": None}]


def test_strides_of_null_are_c_order():
    assert seen_by(Producer((2, 3)))[1:3] == ((2, 3), None)
    assert seen_by(Producer((2, 3), (1, 2)))[1:3] == ((2, 3), (1, 2))


def test_an_array_without_dimensions_or_elements():
    assert seen_by(Producer((), ndim=0, null_shape=True))[1] == ()
    assert seen_by(Producer((0, 3), data=0))[:2] == (0, (0, 3))


def test_an_exporter_older_than_versions_is_asked_again():
    class Old(Producer):
        def __dlpack__(self, stream=None):
            return super().__dlpack__(stream=stream)

    for device in ((CPU, 0), (CUDA, 0)):
        producer = Old(device=device)
        seen_by(producer)
        assert producer.deleted == 1
    assert producer.asked == [{"stream": -1}]


@pytest.mark.parametrize(
    ("flags", "readonly"), [(0, False), (READ_ONLY, True), (READ_ONLY | 2, True), (2, False)]
)
def test_the_read_only_flag(flags, readonly):
    assert view_of(Producer(version=(1, 0), flags=flags)).readonly is readonly


def test_a_deleter_may_be_missing():
    producer = Producer(deleter=False)
    seen_by(producer)
    gc.collect()
    assert producer.deleted == 0


DTYPES = [
    *((INT, bits, f"i{bits // 8}") for bits in (8, 16, 32, 64)),
    *((UINT, bits, f"u{bits // 8}") for bits in (8, 16, 32, 64)),
    *((FLOAT, bits, f"f{bits // 8}") for bits in (16, 32, 64)),
    *((COMPLEX, bits, f"c{bits // 8}") for bits in (64, 128)),
    (BOOL, 8, "?"),
]


@pytest.mark.parametrize(("code", "bits", "name"), DTYPES)
def test_numpy_types(code, bits, name):
    numpy = pytest.importorskip("numpy")
    view = view_of(Producer((2,), None, (code, bits, 1)))
    assert view.dtype == numpy.dtype(name)
    taken = dlpack_peer.take(view)
    assert taken.dtype == (code, bits, 1)
    taken.delete()


@pytest.mark.parametrize("dtype", [(BFLOAT, 16, 1), (10, 8, 1), (FLOAT, 32, 4), (INT, 128, 1), (99, 8, 1)])
def test_types_that_numpy_lacks_are_views_all_the_same(dtype):
    view = view_of(Producer((2,), None, dtype))
    assert view._layout.itemsize == dtype[1] * dtype[2] // 8
    try:
        import ml_dtypes
    except ImportError:
        ml_dtypes = None
    if ml_dtypes is None or dtype[0] not in (BFLOAT, 10):
        with pytest.raises(NotImplementedError):
            view.dtype  # noqa: B018
    taken = dlpack_peer.take(view)
    assert taken.dtype == dtype
    taken.delete()
    assert "StridedMemoryView(ptr=" in repr(view)


# --- wrong -------------------------------------------------------------------------------------------------------

HUGE = 2**62
WRONG = {
    "negative ndim": ({"ndim": -1}, "negative number of dimensions, -1"),
    "no shape": ({"null_shape": True}, "no shape"),
    "negative extent": ({"shape": (2, -3)}, "negative extent, -3"),
    "huge": ({"shape": (HUGE, 4)}, str(HUGE * 4)),
    "huge elements": ({"shape": (HUGE,), "dtype": (COMPLEX, 128, 1)}, str(HUGE)),
    "no memory": ({"data": 0}, "no memory"),
    "byte offset": ({"byte_offset": 2**64 - 8}, str(2**64 - 8)),
    "no bits": ({"dtype": (FLOAT, 0, 1)}, "0 bits"),
    "no lanes": ({"dtype": (FLOAT, 32, 0)}, "0 lanes"),
    "half bytes": ({"dtype": (INT, 4, 1)}, "whole bytes"),
    "other device inside": ({"tensor_device": (8, 0)}, "device type 8"),
}


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_tensor_is_refused_and_goes_back(name, version):
    keywords, text = WRONG[name]
    producer = Producer(version=version, **keywords)
    with pytest.raises(BufferError, match=text):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize("shape", [(2, 3), (HUGE,)])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_strides_beyond_all_addresses(version, shape):
    producer = Producer((3, 3), (HUGE, 1), (UINT, 8, 1), version=version)
    with pytest.raises(OverflowError, match="64 bits"):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1


def test_too_many_dimensions():
    producer = Producer((1,) * 65)
    with pytest.raises(ValueError, match="65"):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize("version", [(0, 9), (2, 0), (99, 0)])
def test_another_major_version_is_refused(version):
    # Everything but version and deleter may mean something else there, so it must not be looked at.
    producer = Producer(version=version, ndim=-7)
    with pytest.raises(BufferError, match=rf"version {version[0]}\.{version[1]} is not supported"):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1


@pytest.mark.parametrize("name", [b"used_dltensor", b"used_dltensor_versioned", b"tensor", b""])
def test_a_capsule_with_another_name_is_left_alone(name):
    producer = Producer(name=name)
    with pytest.raises(BufferError, match="holds no DLPack tensor"):
        view_of(producer)
    gc.collect()
    assert producer.deleted == 1, "by its own destructor"


@pytest.mark.parametrize("answer", [None, 7, "capsule", object()])
def test_an_exporter_must_give_a_capsule(answer):
    class Odd(Producer):
        def __dlpack__(self, **keywords):
            return answer

    with pytest.raises(TypeError, match="must return a capsule"):
        view_of(Odd())


@pytest.mark.parametrize("device", [(8, 0), (0, 0), (-1, 0), (2**31, 0)])
def test_an_unknown_device_is_not_even_asked(device):
    producer = Producer(tensor_device=(CPU, 0))
    producer.device = device
    with pytest.raises(BufferError, match=f"device not supported.*{device[0]}"):
        view_of(producer)
    assert producer.asked == []


@pytest.mark.parametrize("answer", [None, 1, (1,), (1, 2, 3), ("cpu", 0)])
def test_an_odd_answer_for_the_device(answer):
    producer = Producer()
    producer.device = answer
    with pytest.raises((TypeError, ValueError)):
        view_of(producer)
    assert producer.asked == []


@pytest.mark.parametrize("error", [BufferError, RuntimeError, TypeError, LookupError, KeyboardInterrupt])
def test_the_exporters_own_error_comes_out(error):
    class Refusing(Producer):
        def __dlpack__(self, **keywords):
            raise error("no export today")

    with pytest.raises(error, match="no export today"):
        view_of(Refusing())


@pytest.mark.parametrize("value", ["1", 1.0, True, b"1", object()])
def test_a_stream_that_is_none(value):
    producer = Producer(device=(CUDA, 0))
    with pytest.raises(TypeError, match="stream_ptr"):
        view_of(producer, value)
    with pytest.raises(ValueError, match="-2"):
        view_of(producer, -2)
    assert producer.asked == []


# --- the deleter -------------------------------------------------------------------------------------------------


def test_views_of_a_view_share_the_deleter():
    producer = Producer((4, 4), version=(1, 0))
    view = view_of(producer)
    others = [view.view(view._layout[1:]), view.view(dtype="i4"), view.view(view._layout.reshaped((16,)))]
    taken = [dlpack_peer.take(view), dlpack_peer.take(others[0], max_version=(1, 0))]
    view.close()
    view.close()
    del view
    others.clear()
    assert producer.deleted == 0
    taken[0].delete()
    assert producer.deleted == 0
    taken[1].delete_in_foreign_thread()
    assert producer.deleted == 1


def test_a_cycle_through_the_exporter_is_collected():
    class Holding(Producer):
        pass

    counted = []
    producer = Holding()
    producer._delete = lambda address: counted.append(address)
    producer._deleter = dlpack_peer.WITH_GIL(lambda address: counted.append(address))
    producer.managed.deleter = ctypes.cast(producer._deleter, ctypes.c_void_p)
    kept = producer._deleter  # the function must outlive its producer here
    view = view_of(producer)
    view.exporting_obj.view = view
    del producer, view
    gc.collect()
    assert len(counted) == 1
    del kept


def test_a_raising_deleter_does_no_harm(capfd):
    producer = Producer()

    def fail(address):
        raise LookupError("in the deleter")

    producer._deleter = dlpack_peer.WITH_GIL(fail)
    producer.managed.deleter = ctypes.cast(producer._deleter, ctypes.c_void_p)
    seen = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda args: seen.append(args.exc_type)
    try:
        seen_by(producer)
    finally:
        sys.unraisablehook = hook
    assert seen == [LookupError]


@pytest.mark.parametrize("stream_ptr", [None, -1, 0, 1])
@pytest.mark.parametrize(
    "resource", [LegacyPinnedMemoryResource, SOURCES["managed pool"]], ids=["pinned", "managed"]
)
def test_numpys_view_of_memory_that_devices_use_too_can_be_viewed(device, stream, resource, stream_ptr):
    """NumPy says where such memory lies, and refuses every stream but None."""
    source = resource(device) if resource is not LegacyPinnedMemoryResource else resource()
    with source.allocate(64, stream=stream) as buffer:
        array = numpy.from_dlpack(buffer)
        for way in (StridedMemoryView.from_dlpack, StridedMemoryView.from_any_interface):
            with way(array, stream_ptr) as view:
                assert (view.ptr, view.shape) == (buffer.handle, (64,))
                assert view.is_device_accessible
        with pytest.raises((RuntimeError, ValueError), match="stream"):
            StridedMemoryView.from_dlpack(array, 2)  # an order that was asked for and cannot be had
        del array, view
        assert buffer.loans == 0


def test_threads_view_and_close():
    producers = [Producer((4,)) for _ in range(4)]

    def work(producer):
        def run():
            for _ in range(50):
                view_of(producer).close()

        return run

    assert race(*map(work, producers)) == [None] * 4
    assert [producer.deleted for producer in producers] == [50] * 4


def test_one_view_closed_by_many_threads():
    for _ in range(20):
        producer = Producer()
        view = view_of(producer)
        assert race(*[view.close] * 4) == [None] * 4
        assert producer.deleted == 1


@pytest.mark.parametrize("options", [("-W", "error"), ("-X", "dev")], ids=["warnings are errors", "dev"])
def test_a_process_ends_quietly_with_views_open(options):
    code = """
import sys
from cuda.core import Device
from cuda.core.utils import StridedMemoryView
from dlpack_peer import Producer
Device(0).set_current()
view = StridedMemoryView.from_dlpack(Producer(), -1)
sys.view = StridedMemoryView.from_dlpack(Producer(), -1)
capsule = view.__dlpack__()
cycle = [StridedMemoryView.from_dlpack(Producer(), -1)]
cycle.append(cycle)
print("end")
"""
    assert child_output(code, options=options) == "end\n"
