# SPDX-License-Identifier: Apache-2.0
"""DLPack exports of buffers: what a capsule says, whose it is, and that it ends once."""

import ctypes
import gc
import random

import pytest

import dlpack_peer
from buffer_kinds import SOURCES
from cuda.core import (
    Buffer,
    CloseResult,
    CUDAWarning,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    Ownership,
    OwnershipError,
    TransferredTo,
)
from cuda.core._dlpack import DLDeviceType, classify_dl_device
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core.utils import StridedMemoryView
from dlpack_peer import CPU, CUDA, CUDA_HOST, CUDA_MANAGED, IS_COPIED, consume, look, take
from python_resources import Plain, Refusing
from support import (
    GRANULE,
    address_free,
    blocked,
    child_output,
    fill_granules,
    given_back,
    race,
    read,
    still_allocated,
    warnings_seen,
    write,
)

pytestmark = pytest.mark.usefixtures("device")

VERSIONS = {"plain": {}, "versioned": {"max_version": (1, 0)}}


DEVICE_TYPES = {"pinned": CUDA_HOST, "pinned pool": CUDA_HOST, "managed pool": CUDA_MANAGED}


@pytest.fixture(params=SOURCES.values(), ids=SOURCES)
def source(request, device):
    return request.param(device)


@pytest.fixture
def pinned(device):
    with LegacyPinnedMemoryResource().allocate(4096) as buffer:
        yield buffer


@pytest.fixture
def plain(device):
    with _SynchronousMemoryResource(0).allocate(4096) as buffer:
        yield buffer


# --- what a capsule says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fields_of_a_capsule(source, version):
    with source.allocate() as buffer:
        taken = take(buffer, **VERSIONS[version])
        assert taken.data == buffer.handle
        assert taken.device == buffer.__dlpack_device__() == (DEVICE_TYPES.get(source.name, CUDA), 0)
        assert taken.dtype == (dlpack_peer.INT, 8, 1)
        assert (taken.shape, taken.strides) == ((source.size,), (1,))
        assert taken.flags == (None if version == "plain" else 0)
        assert taken.version == (None if version == "plain" else (1, 3))
        taken.delete()


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        (None, "dltensor"),
        ((0, 8), "dltensor"),
        ((1, 0), "dltensor_versioned"),
        ((1, 9), "dltensor_versioned"),
        ((2, 0), "dltensor_versioned"),
    ],
)
def test_a_consumer_gets_the_newest_capsule_that_it_understands(plain, asked, name):
    assert repr(name).replace("'", '"') in repr(plain.__dlpack__(max_version=asked))
    assert plain.loans == 0


def test_an_empty_buffer_is_exported():
    with LegacyPinnedMemoryResource().allocate(0) as buffer:
        taken = take(buffer)
        assert (taken.data, taken.shape) == (0, (0,))
        assert buffer.loans == 1
        taken.delete()


def test_the_numbers_of_the_devices():
    assert {kind.name: int(kind) for kind in DLDeviceType} == {
        "kDLCPU": CPU,
        "kDLCUDA": CUDA,
        "kDLCUDAHost": CUDA_HOST,
        "kDLCUDAManaged": CUDA_MANAGED,
    }


class Place:
    def __init__(self, device, host, managed, device_id):
        self.is_device_accessible, self.is_host_accessible = device, host
        self.is_managed, self.device_id = managed, device_id


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ((True, False, False, 3), (CUDA, 3)),
        ((True, False, True, 2), (CUDA, 2)),
        ((True, True, False, -1), (CUDA_HOST, 0)),
        ((True, True, True, 1), (CUDA_MANAGED, 0)),
        ((False, True, False, -1), (CPU, 0)),
    ],
)
def test_one_rule_gives_the_device(place, expected):
    assert classify_dl_device(Place(*place)) == expected


def test_memory_that_nobody_can_use_has_no_device():
    with pytest.raises(BufferError, match="neither device-accessible nor host-accessible"):
        classify_dl_device(Place(False, False, False, 0))


# --- whose it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_each_capsule_is_one_loan(source, version):
    buffer = source.allocate()
    first, second = (buffer.__dlpack__(**VERSIONS[version]) for _ in range(2))
    assert buffer.loans == 2
    del first
    assert buffer.loans == 1, "a capsule that nobody consumed ends with itself"
    taken = consume(second)
    del second
    assert buffer.loans == 1, "a consumed capsule is empty"
    taken.delete()
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("close", ["close", "drop"])
def test_the_memory_stays_until_the_last_capsule_ends(source, version, close):
    buffer = source.allocate()
    address = buffer.handle
    write(address, b"lent")
    unconsumed = buffer.__dlpack__(**VERSIONS[version])
    taken = [take(buffer, **VERSIONS[version]) for _ in range(2)]
    if close == "close":
        assert buffer.close() is CloseResult.LENT
        assert (buffer.ownership, buffer.transferred_to) == (Ownership.TRANSFERRED, TransferredTo.LOANS)
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            buffer.__dlpack__()
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            buffer.__dlpack_device__()
    else:
        del buffer
        gc.collect()
    for end in (taken[0].delete, taken[1].delete_with_gil):
        assert read(address, 4) == b"lent"
        end()
    assert still_allocated(address)
    del unconsumed
    assert given_back(address)
    assert source.frees() in (None, 1)


@pytest.mark.parametrize("seed", range(10))
def test_loans_of_all_kinds_end_in_any_order(seed):
    buffer = LegacyPinnedMemoryResource().allocate(256)
    address, chooser = buffer.handle, random.Random(seed)
    part = buffer[16:32]
    ends = [memoryview(buffer).release, buffer.array_view().close, part.close]
    ends += [take(thing, **VERSIONS[version]).delete for thing in (buffer, part) for version in VERSIONS]
    ends.append(buffer.close)
    chooser.shuffle(ends)
    while ends:
        assert still_allocated(address)
        ends.pop()()
    del part
    assert given_back(address)


def test_the_capsule_of_a_slice_lends_the_slice(plain):
    write(plain.handle, bytes(range(64)))
    part = plain[16:32]
    taken = take(part)
    assert (taken.data, taken.shape) == (plain.handle + 16, (16,))
    assert (part.loans, plain.loans) == (1, 1)
    assert part.close() is CloseResult.LENT
    assert plain.loans == 1
    assert read(taken.data, 4) == bytes(range(16, 20))
    taken.delete()
    assert plain.loans == 0


def test_memory_of_somebody_else_is_exported():
    block = ctypes.create_string_buffer(b"somebody else's", 32)
    buffer = Buffer.from_handle(ctypes.addressof(block), 32, owner=block)
    assert buffer.__dlpack_device__() == (CPU, 0)
    taken = take(buffer)
    assert (taken.device, taken.data) == ((CPU, 0), ctypes.addressof(block))
    assert buffer.close() is CloseResult.LENT
    taken.delete()
    assert buffer.loans == 0


@pytest.mark.parametrize("how", ["closed", "detached", "grown"])
def test_a_closed_buffer_exports_nothing(device, resource, how):
    buffer = resource.allocate(GRANULE)
    rest = {
        "closed": buffer.close,
        "detached": buffer.detach,
        "grown": lambda: resource.modify_allocation(buffer, 2 * GRANULE),
    }[how]()
    for export in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(OwnershipError, match=r"^Buffer has been closed"):
            export()
    assert buffer.loans == 0
    if how == "detached":
        Buffer.adopt(rest).close()
    elif how == "grown":
        rest.close()


# --- cases from the field ----------------------------------------------------------------------------------------


class Shy(Plain):
    """Raises when it is asked whether the device can use its memory."""

    asked_where = False

    @property
    def is_device_accessible(self):
        if self.asked_where:
            raise LookupError("not now")
        return True


def test_dl_01_an_export_that_fails_half_way_is_no_loan():
    resource = Shy()
    buffer = resource.allocate(4096)
    resource.asked_where = True
    for export in (buffer.__dlpack__, buffer.__dlpack_device__):
        with pytest.raises(LookupError, match="not now"):
            export()
    resource.asked_where = False
    assert buffer.loans == 0
    buffer.__dlpack__()
    assert buffer.loans == 0, "the capsule was dropped"
    assert buffer.close() is CloseResult.DONE
    assert len(resource.asked) == 1


def test_dl_02_ownership_is_not_given_away_while_a_consumer_looks(source):
    buffer = source.allocate()
    taken = take(buffer)
    with pytest.raises(BufferError, match="loans"):
        buffer.detach()
    assert buffer.ownership is Ownership.OWNED
    gc.disable()
    try:
        taken.delete()
        Buffer.adopt(buffer.detach()).close()
    finally:
        gc.enable()


@pytest.mark.parametrize("version", VERSIONS)
def test_dl_03_a_grow_that_moves_leaves_a_consumer_its_addresses(resource, version):
    buffer = resource.allocate(GRANULE)
    fill_granules(buffer)
    taken = take(buffer, **VERSIONS[version])
    with blocked(buffer):
        grown = resource.modify_allocation(buffer, 2 * GRANULE)
    assert grown.handle != taken.data
    assert grown.loans == 1
    write(taken.data, b"written by the consumer")
    assert read(grown.handle, 23) == b"written by the consumer"
    write(grown.handle, b"\0" * 23)
    assert read(taken.data, 23) == b"\0" * 23
    assert not address_free(taken.data, GRANULE)
    taken.delete()
    assert address_free(taken.data, GRANULE)
    assert grown.close() is CloseResult.DONE


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("offset", [1, 100, 4088])
def test_dl_04_the_capsule_of_a_slice_begins_at_its_offset(pinned, version, offset):
    pattern = bytes(index % 251 for index in range(4096))
    write(pinned.handle, pattern)
    with pinned[offset:] as part:
        taken = take(part, **VERSIONS[version])
        assert read(taken.data, 8) == pattern[offset : offset + 8]
        taken.delete()


def test_dl_05_the_device_says_who_can_read(device):
    for kind, make in SOURCES.items():
        source = make(device)
        with source.allocate() as buffer:
            assert buffer.is_device_accessible, kind
            assert buffer.is_host_accessible is source.at_host, kind
            assert buffer.__dlpack_device__()[0] == DEVICE_TYPES.get(kind, CUDA), kind
            if source.at_host:
                write(buffer.handle, b"host")
                taken = take(buffer)
                assert ctypes.string_at(taken.data, 4) == b"host"
                taken.delete()


# --- where a deleter may be called -------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
def test_a_deleter_runs_on_a_thread_that_python_does_not_know(source, version, last):
    buffer = source.allocate()
    address = buffer.handle
    taken = take(buffer, **VERSIONS[version])
    if last:
        assert buffer.close() is CloseResult.LENT
    taken.delete_in_foreign_thread()
    assert buffer.loans == 0
    if not last:
        assert buffer.close() is CloseResult.DONE
    assert given_back(address)


def test_a_deleter_keeps_the_exception_of_a_consumer_that_failed(plain):
    numpy = pytest.importorskip("numpy")
    for _ in range(3):
        with pytest.raises((RuntimeError, BufferError), match="Unsupported device"):
            numpy.from_dlpack(plain)
    assert plain.loans == 0


def test_a_capsule_in_garbage_is_collected(source):
    buffer = source.allocate()
    cycle = [buffer.__dlpack__()]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert buffer.loans == 0
    buffer.close()


def test_a_failing_free_behind_the_last_capsule_is_reported():
    resource = Refusing(1)
    buffer = resource.allocate(4096)
    address = buffer.handle
    taken = take(buffer)
    assert buffer.close() is CloseResult.LENT
    with warnings_seen() as seen:
        taken.delete_in_foreign_thread()
    assert [warning.category for warning in seen] == [CUDAWarning]
    assert "after its last loan: LookupError: not now" in str(seen[0].message)
    assert resource.asked == ["refused"]
    resource.give_back(address)


EXIT = """
import atexit, sys
from buffer_kinds import SOURCES
from cuda.core import Device
from dlpack_peer import Taken, consume, take
device = Device(0)
device.set_current()
sources = [SOURCES[kind](device) for kind in SOURCES]
buffers = [source.allocate() for source in sources]
unconsumed = [buffer.__dlpack__() for buffer in buffers]
versioned = [buffer.__dlpack__(max_version=(1, 0)) for buffer in buffers]
consumed = [take(buffer) for buffer in buffers]
lent = [source.allocate() for source in sources]
last = [buffer.__dlpack__() for buffer in lent]
for buffer in lent:
    buffer.close()
cycle = [buffer.__dlpack__() for buffer in buffers]
cycle.append(cycle)
sys.capsules = [source.allocate().__dlpack__() for source in sources]
try:
    import numpy
except ImportError:
    pass
else:
    array = numpy.from_dlpack(sources[1].allocate())
"""


@pytest.mark.parametrize("options", [("-W", "error"), ("-X", "dev")], ids=["warnings are errors", "dev"])
@pytest.mark.parametrize("how", ["plain", "deleted at exit", "deleted by C at exit"])
def test_a_process_ends_quietly_with_capsules_out(how, options):
    end = {
        "plain": "",
        "deleted at exit": "atexit.register(lambda: [taken.delete() for taken in consumed])",
        # Called when Python is gone: by the C library, after Py_Finalize.
        "deleted by C at exit": """
import ctypes
for taken in consumed:
    assert ctypes.CDLL(None).__cxa_atexit(
        ctypes.c_void_p(taken.deleter), ctypes.c_void_p(taken.address), None) == 0
""",
    }[how]
    assert child_output(EXIT + end + "\nprint('end')", options=options) == "end\n"


def test_a_child_of_a_fork_may_end_what_it_inherited():
    code = """
import ctypes, gc, os, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
from buffer_kinds import SOURCES
from cuda.core import Device, OwnershipError
from dlpack_peer import take
from support import still_allocated, watching_driver
device = Device(0)
device.set_current()
sim = watching_driver()
buffers = [SOURCES[kind](device).allocate() for kind in SOURCES]
capsules = [buffer.__dlpack__() for buffer in buffers]
taken = [take(buffer) for buffer in buffers]
addresses = [buffer.handle for buffer in buffers]
lent = [SOURCES[kind](device).allocate() for kind in SOURCES]
last = [take(buffer) for buffer in lent]
for buffer in lent:
    buffer.close()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    code = 1
    try:
        before = dict(sim.calls()) if sim else None
        for one in taken + last:
            one.delete()
        capsules.clear()
        for buffer in buffers:
            try:
                buffer.__dlpack__()
            except OwnershipError:
                pass
            else:
                raise AssertionError(buffer)
        gc.collect()
        assert before == (dict(sim.calls()) if sim else None)
        code = 0
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print([buffer.loans for buffer in buffers], all(map(still_allocated, addresses)))
for one in taken + last:
    one.delete()
capsules.clear()
print([buffer.close().name for buffer in buffers])
"""
    count = len(SOURCES)
    assert child_output(code).splitlines() == [
        "0",
        f"{[2] * count} True",
        str(["DONE"] * count),
    ]


# --- NumPy -------------------------------------------------------------------------------------------------------


def test_numpy_sees_and_keeps_the_memory(pinned):
    numpy = pytest.importorskip("numpy")
    array = numpy.from_dlpack(pinned)
    assert (array.dtype, array.shape, array.flags.writeable) == (numpy.int8, (4096,), True)
    assert array.ctypes.data == pinned.handle
    write(pinned.handle, bytes(range(100)))
    assert array[:100].tobytes() == bytes(range(100))
    array[0] = 77
    assert read(pinned.handle, 1) == b"M"
    part = array[10:20]
    del array
    assert pinned.loans == 1
    assert pinned.close() is CloseResult.LENT
    assert part.tobytes() == bytes(range(10, 20))
    address = part.ctypes.data - 10
    assert still_allocated(address)
    del part
    assert given_back(address)


def test_numpy_asks_for_the_host(pinned, plain):
    numpy = pytest.importorskip("numpy")
    write(pinned.handle, b"abcd")
    write(plain.handle, b"wxyz")
    try:
        numpy.from_dlpack(pinned, device="cpu")
    except TypeError:
        pytest.skip("this NumPy knows no device=")
    seen = numpy.from_dlpack(pinned, device="cpu")
    assert seen.ctypes.data == pinned.handle, "the host can use it where it is"
    assert (seen[:4].tobytes(), pinned.loans) == (b"abcd", 1)
    del seen
    copied = numpy.from_dlpack(plain, device="cpu")
    assert copied.shape == (4096,)
    assert (copied[:4].tobytes(), plain.loans) == (b"wxyz", 0)
    with pytest.raises((BufferError, ValueError)):
        numpy.from_dlpack(plain, device="cpu", copy=False)
    del copied
    assert (pinned.loans, plain.loans) == (0, 0)


# --- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_is_memory_of_its_own(source, version):
    buffer = source.allocate()
    if source.resource is None:
        with pytest.raises(BufferError, match="no memory resource"):
            buffer.__dlpack__(copy=True)
        buffer.close()
        return
    write(buffer.handle, b"before")
    taken = take(buffer, copy=True, **VERSIONS[version])
    write(buffer.handle, b"after.")
    assert buffer.loans == 0
    assert taken.data != buffer.handle
    assert (taken.shape, taken.device) == ((buffer.size,), buffer.__dlpack_device__())
    assert taken.flags == (None if version == "plain" else IS_COPIED)
    assert read(taken.data, 6) == b"before"
    assert buffer.close() is CloseResult.DONE
    assert read(taken.data, 6) == b"before"
    taken.delete()
    assert given_back(taken.data)


def test_a_copy_of_a_slice_is_of_its_bytes(plain):
    write(plain.handle, bytes(range(64)))
    with plain[16:32] as part:
        for device in (None, (CPU, 0)):
            taken = take(part, copy=True, dl_device=device)
            assert taken.shape == (16,)
            whole = bytes(range(16, 32))
            assert (ctypes.string_at(taken.data, 16) if device else read(taken.data, 16)) == whole
            taken.delete()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_copy_for_the_host_belongs_to_the_capsule(source, version):
    with source.allocate() as buffer:
        write(buffer.handle, b"copied")
        capsule = buffer.__dlpack__(dl_device=(CPU, 0), copy=True, **VERSIONS[version])
        seen = look(capsule)
        assert (seen.device, seen.shape, buffer.loans) == ((CPU, 0), (buffer.size,), 0)
        assert seen.flags == (None if version == "plain" else IS_COPIED)
        assert ctypes.string_at(seen.data, 6) == b"copied"


def test_no_copy_where_none_is_wanted(pinned, plain):
    for device in (None, (CUDA_HOST, 0), (CPU, 0)):
        taken = take(pinned, copy=False, dl_device=device)
        assert (taken.data, taken.device) == (pinned.handle, device or (CUDA_HOST, 0))
        taken.delete()
    with pytest.raises(BufferError, match="without a copy"):
        plain.__dlpack__(dl_device=(CPU, 0), copy=False)


def test_nothing_empty_is_copied():
    with LegacyPinnedMemoryResource().allocate(0) as buffer:
        for device in (None, (CPU, 0)):
            taken = take(buffer, copy=True, dl_device=device)
            assert taken.shape == (0,)
            taken.delete()


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["buffer", "view"])
def test_managed_memory_is_lent_to_every_device(devices, stream, of):
    """At the same address: a consumer that knows no managed memory asks for its own device."""
    with ManagedMemoryResource().allocate(64, stream=stream) as buffer:
        lender = buffer if of == "buffer" else StridedMemoryView.from_dlpack(buffer, stream_ptr=-1)
        for ordinal in range(len(devices)):
            for copy in (None, False):
                taken = take(lender, stream=-1, dl_device=(CUDA, ordinal), copy=copy)
                assert (taken.device, taken.data) == ((CUDA, ordinal), buffer.handle)
                taken.delete()
        for ordinal in (-1, len(devices), 2**40):
            with pytest.raises(BufferError, match=f"{ordinal}"):
                lender.__dlpack__(stream=-1, dl_device=(CUDA, ordinal))
        if of == "view":
            lender.close()
        assert buffer.loans == 0


class NotANumber:
    def __int__(self):
        raise ValueError("no")


WRONG = [
    ({"stream": 0}, ValueError, "stream=0"),
    ({"stream": -2}, ValueError, "-2"),
    ({"stream": 2**64}, ValueError, str(2**64)),
    ({"stream": "1"}, TypeError, "'1'"),
    ({"stream": 1.0}, TypeError, "1.0"),
    ({"stream": True}, TypeError, "True"),
    ({"stream": b"1"}, TypeError, "b'1'"),
    ({"stream": NotANumber()}, TypeError, "NotANumber"),
    ({"max_version": 1}, TypeError, "got 1"),
    ({"max_version": [1, 0]}, TypeError, "1, 0"),
    ({"max_version": (1,)}, BufferError, r"Expected max_version tuple\[int, int\], got \(1,\)"),
    ({"max_version": (1, 0, 0)}, BufferError, "1, 0, 0"),
    ({"max_version": ("1", 0)}, TypeError, "'1'"),
    ({"dl_device": 1}, TypeError, "got 1"),
    ({"dl_device": (1,)}, TypeError, "1,"),
    ({"dl_device": ("cpu", 0)}, TypeError, "'cpu'"),
    ({"dl_device": (True, 0)}, TypeError, "True"),
    ({"dl_device": (2, 77)}, BufferError, "77"),
    ({"dl_device": (99, 0)}, BufferError, "99"),
    ({"copy": 1}, TypeError, "got 1"),
    ({"copy": "yes"}, TypeError, "yes"),
]


@pytest.mark.parametrize(("keywords", "error", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_bad_input_is_refused_before_anything_happens(pinned, plain, driver_watch, keywords, error, text):
    for buffer in (pinned, plain):
        with driver_watch.no_call():
            with pytest.raises(error, match=text):
                buffer.__dlpack__(**keywords)
        assert buffer.loans == 0


def test_positional_arguments_are_refused(plain):
    with pytest.raises(TypeError):
        plain.__dlpack__(1)


def test_memory_of_the_host_alone_has_no_streams():
    block = ctypes.create_string_buffer(16)
    with Buffer.from_handle(ctypes.addressof(block), 16, owner=block) as buffer:
        with pytest.raises(ValueError, match="only the host"):
            buffer.__dlpack__(stream=1)
        for stream in (None, -1):
            take(buffer, stream=stream).delete()
        assert buffer.loans == 0


# --- threads -----------------------------------------------------------------------------------------------------


def test_threads_export_and_end(source):
    buffer = source.allocate()
    address = buffer.handle

    def work():
        for index in range(200):
            taken = take(buffer, stream=-1, **VERSIONS["versioned" if index % 2 else "plain"])
            (taken.delete if index % 3 else taken.delete_with_gil)()

    assert race(*[work] * 4) == [None] * 4
    assert buffer.loans == 0
    assert buffer.close() is CloseResult.DONE
    assert given_back(address)


@pytest.mark.parametrize("_", range(10))
def test_an_export_races_with_a_close(source, _):
    buffer = source.allocate()
    address = buffer.handle

    def export():
        return take(buffer, stream=-1)

    outcomes = race(export, buffer.close, export)
    taken = [outcome for outcome in outcomes if isinstance(outcome, dlpack_peer.Taken)]
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome, (dlpack_peer.Taken, OwnershipError)), outcome
    if outcomes[1] is CloseResult.LENT:
        assert taken
    else:
        assert (outcomes[1], taken) == (CloseResult.DONE, [])
    for one in taken:
        assert still_allocated(address)
        one.delete_in_foreign_thread()
    assert given_back(address)
    assert source.frees() in (None, 1)
