# SPDX-License-Identifier: Apache-2.0
"""copy_batch: many copies in one call, checked as a whole, and what older and newer drivers make of options."""

import os
import sys

import pytest

from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    PER_THREAD_DEFAULT_STREAM,
    Buffer,
    CUDAError,
    Host,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from cuda.core.utils import CopyOptions, copy_batch
from held_work import Gate
from memory_kinds import KINDS, SIZE, get, pattern, put
from python_resources import Plain
from support import check, child_output, in_context, race, read, write

SMALL = 4096
ANY, DURING = CopyOptions("any"), CopyOptions("during_api_call")


class Pairs:
    """Sources with patterns of their own and zeroed destinations, of different sizes."""

    def __init__(self, count):
        self.resource = Plain()
        self.sources = [self.resource.allocate(SMALL * (1 + index % 3)) for index in range(count)]
        self.targets = [self.resource.allocate(source.size) for source in self.sources]
        for index, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            write(source.handle, pattern(source.size, index))
            write(target.handle, bytes(target.size))

    def arrived(self):
        return [
            read(target.handle, target.size) == pattern(target.size, index)
            for index, target in enumerate(self.targets)
        ]

    def untouched(self):
        return all(read(target.handle, target.size) == bytes(target.size) for target in self.targets)

    def loans(self):
        return sum(buffer.loans for buffer in self.sources + self.targets)

    def close(self):
        for buffer in self.sources + self.targets:
            buffer.close()
        assert self.resource.held == {}


# --- bytes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 300])
@pytest.mark.parametrize("sequence", [list, tuple])
def test_each_source_arrives_at_its_own_destination_in_one_call(
    device, stream, driver_watch, count, sequence
):
    pairs = Pairs(count)
    calls = driver_watch.calls_of(
        lambda: copy_batch(stream, sequence(pairs.sources), sequence(pairs.targets))
    )
    if driver_watch.sim:
        assert calls["cuMemcpyBatchAsync"] == 1
        assert "cuMemcpyAsync" not in calls
    stream.sync()
    assert all(pairs.arrived())
    assert pairs.loans() == 0
    pairs.close()


def test_any_sequence_will_do(device, stream):
    from collections import deque

    pairs = Pairs(3)
    assert copy_batch(stream, deque(pairs.sources), dsts=pairs.targets) is None
    stream.sync()
    assert all(pairs.arrived())
    pairs.close()


def test_memory_of_every_kind_goes_into_one_batch(device, stream):
    sources = [KINDS[kind](SIZE) for kind in KINDS]
    targets = [KINDS[kind](SIZE) for kind in reversed(KINDS)]
    for index, source in enumerate(sources):
        put(source, pattern(SIZE, index))
    copy_batch(stream, sources, targets)
    stream.sync()
    for index, target in enumerate(targets):
        assert get(target) == pattern(SIZE, index)
    for buffer in sources + targets:
        assert buffer.loans == 0
        buffer.close()


@pytest.mark.parametrize(
    "options",
    [
        None,
        CopyOptions(),
        ANY,
        DURING,
        [ANY, ANY, CopyOptions(), DURING],
        (ANY, CopyOptions(), ANY, CopyOptions()),
        [CopyOptions(src_location_hint=Host(), dst_location_hint=Host.numa_current())] * 4,
        CopyOptions(overlap_mode="prefer_overlap_with_compute"),
    ],
    ids=["none", "default", "any", "during", "runs", "changing", "hints", "overlap"],
)
def test_options_never_change_the_bytes(device, stream, options):
    pairs = Pairs(4)
    copy_batch(stream, pairs.sources, pairs.targets, options=options)
    stream.sync()
    assert all(pairs.arrived())
    pairs.close()


@pytest.mark.sim_only
def test_a_source_that_is_read_during_the_call_may_be_overwritten_at_once(device, stream):
    """Ordinary memory of the host, which the driver reads at once, whatever the order."""
    import ctypes

    memory = ctypes.create_string_buffer(pattern(SMALL), SMALL)
    source = Buffer.from_handle(ctypes.addressof(memory), SMALL, owner=memory)
    target = Plain().allocate(SMALL)
    with Gate(stream):
        copy_batch(stream, [source], [target], options=DURING)
        ctypes.memset(memory, 0, SMALL)
    stream.sync()
    assert read(target.handle, SMALL) == pattern(SMALL)
    source.close()
    target.close()


@pytest.mark.parametrize("places", [(0,), (1,), (0, 2), (0, 1, 2)])
def test_empty_buffers_are_passed_over(device, stream, driver_watch, places):
    virtual, pairs = VirtualMemoryResource(device), Pairs(3)
    sources, targets, empty = list(pairs.sources), list(pairs.targets), []
    for place in reversed(places):
        empty += [virtual.allocate(0), Buffer.from_handle(0, 0)]
        sources.insert(place, empty[-2])
        targets.insert(place, empty[-1])
    options = [ANY if index % 2 else CopyOptions() for index in range(len(sources))]
    copy_batch(stream, sources, targets, options=options)
    stream.sync()
    assert all(pairs.arrived())
    for buffer in empty:
        assert buffer.loans == 0
        buffer.close()
    pairs.close()


@pytest.mark.watched
def test_nothing_but_empty_buffers_is_no_copy(device, stream, driver_watch):
    one, two = Buffer.from_handle(0, 0), Buffer.from_handle(0, 0)
    calls = driver_watch.calls_of(lambda: copy_batch(stream, [one], [two]))
    assert not [name for name in calls if "cpy" in name]


def test_the_per_thread_stream_is_a_stream(device):
    pairs = Pairs(2)
    copy_batch(PER_THREAD_DEFAULT_STREAM, pairs.sources, pairs.targets)
    PER_THREAD_DEFAULT_STREAM.sync()
    assert all(pairs.arrived())
    pairs.close()


@pytest.mark.sim_only
def test_a_batch_is_ordered_by_its_stream_and_waits_for_nothing(device, stream):
    pairs = Pairs(3)
    with Gate(stream):
        copy_batch(stream, pairs.sources, pairs.targets)
    stream.sync()
    assert all(pairs.arrived())
    pairs.close()


# --- what is refused ---------------------------------------------------------------------------------------------

WRONG = {
    "empty": (lambda p, s: copy_batch(s, [], []), ValueError, "copy_batch: empty buffers sequence"),
    "one source": (
        lambda p, s: copy_batch(s, p.sources[0], p.targets),
        TypeError,
        "copy_batch: pass a sequence of Buffers; for a single buffer use Buffer.copy_to",
    ),
    "one target": (lambda p, s: copy_batch(s, p.sources, p.targets[0]), TypeError, "for a single buffer"),
    "generator": (
        lambda p, s: copy_batch(s, (b for b in p.sources), p.targets),
        TypeError,
        "copy_batch: buffers must be a sequence of Buffer, got generator",
    ),
    "set": (
        lambda p, s: copy_batch(s, {*p.sources}, p.targets),
        TypeError,
        "must be a sequence of Buffer, got set",
    ),
    "None": (
        lambda p, s: copy_batch(s, p.sources, None),
        TypeError,
        "must be a sequence of Buffer, got NoneType",
    ),
    "text": (
        lambda p, s: copy_batch(s, "ab", p.targets),
        TypeError,
        "copy_batch: expected Buffer, got str: 'a'",
    ),
    "numbers": (
        lambda p, s: copy_batch(s, [1, 2], p.targets),
        TypeError,
        "copy_batch: expected Buffer, got int: 1",
    ),
    "a None": (lambda p, s: copy_batch(s, p.sources, [None] * 3), TypeError, "expected Buffer, got NoneType"),
    "lengths": (
        lambda p, s: copy_batch(s, p.sources, p.targets[:2]),
        ValueError,
        "copy_batch: srcs length 3 does not match dsts length 2",
    ),
    "sizes": (
        lambda p, s: copy_batch(s, p.sources, [p.targets[0], p.targets[2], p.targets[1]]),
        ValueError,
        rf"copy_batch: buffer size mismatch at index 1 \(src={2 * SMALL}, dst={3 * SMALL}\); .*dst\[:{2 * SMALL}\]$",
    ),
    "stream None": (lambda p, s: copy_batch(None, p.sources, p.targets), TypeError, "stream"),
    "stream number": (lambda p, s: copy_batch(0, p.sources, p.targets), TypeError, "[sS]tream"),
    "legacy": (
        lambda p, s: copy_batch(LEGACY_DEFAULT_STREAM, p.sources, p.targets),
        TypeError,
        "copy_batch does not accept LEGACY_DEFAULT_STREAM",
    ),
    "options dict": (
        lambda p, s: copy_batch(s, p.sources, p.targets, options={}),
        TypeError,
        "copy_batch: options must be CopyOptions or a sequence of CopyOptions, got dict",
    ),
    "options too few": (
        lambda p, s: copy_batch(s, p.sources, p.targets, options=[ANY]),
        ValueError,
        "copy_batch: options length 1 does not match buffers length 3",
    ),
    "options None within": (
        lambda p, s: copy_batch(s, p.sources, p.targets, options=[ANY, None, ANY]),
        TypeError,
        "copy_batch: each options element must be CopyOptions, got NoneType",
    ),
    "hint": (
        lambda p, s: copy_batch(
            s, p.sources, p.targets, options=[ANY, ANY, CopyOptions(src_location_hint=[1])]
        ),
        TypeError,
        "location must be a Device, Host, or None; got list",
    ),
    "options by position": (lambda p, s: copy_batch(s, p.sources, p.targets, ANY), TypeError, "positional"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_refused_before_any_driver_call(device, stream, driver_watch, case):
    call, error, text = WRONG[case]
    pairs = Pairs(3)
    with driver_watch.no_call():
        with pytest.raises(error, match=text):
            call(pairs, stream)
    assert pairs.loans() == 0
    assert pairs.untouched()
    pairs.close()


@pytest.mark.parametrize("side", ["sources", "targets"])
@pytest.mark.parametrize("how", ["closed", "detached", "grown"])
@pytest.mark.parametrize("place", [0, 2])
def test_a_batch_with_a_buffer_that_is_over_copies_nothing(
    device, stream, driver_watch, resource, side, how, place
):
    pairs = Pairs(3)
    size = pairs.sources[place].size
    bad, keep = Plain().allocate(size), []
    if how == "closed":
        bad.close()
    elif how == "detached":
        keep.append(bad.detach())
    else:
        bad.close()
        bad = resource.allocate(size)
        keep.append(resource.modify_allocation(bad, 2 * bad.size))
    getattr(pairs, side)[place], kept = bad, getattr(pairs, side)[place]
    with driver_watch.no_call():
        with pytest.raises(OwnershipError, match="Buffer has been closed"):
            copy_batch(stream, pairs.sources, pairs.targets)
    getattr(pairs, side)[place] = kept
    assert pairs.loans() == 0
    assert pairs.untouched()
    for thing in keep:
        (thing if isinstance(thing, Buffer) else Buffer.adopt(thing)).close()
    pairs.close()


def test_a_pair_that_overlaps_is_refused_with_its_index(device, stream, driver_watch):
    pairs = Pairs(1)
    whole = Plain().allocate(2 * SMALL)
    with whole[:SMALL] as low, whole[64 : SMALL + 64] as high, driver_watch.no_call():
        with pytest.raises(ValueError, match="must not overlap at index 1"):
            copy_batch(stream, [*pairs.sources, low], [*pairs.targets, high])
    whole.close()
    pairs.close()


@pytest.mark.parametrize("mode", list(driver.CUstreamCaptureMode), ids=lambda mode: mode.name)
def test_a_stream_that_is_being_captured_is_refused_and_the_capture_goes_on(device, stream, mode):
    pairs = Pairs(2)
    check(driver.cuStreamBeginCapture(stream.handle, mode))
    try:
        with pytest.raises(TypeError, match="copy_batch does not support graph capture"):
            copy_batch(stream, pairs.sources, pairs.targets)
    finally:
        graph = check(driver.cuStreamEndCapture(stream.handle))
    check(driver.cuGraphDestroy(graph))
    assert pairs.loans() == 0
    assert pairs.untouched()
    pairs.close()


# --- failures, threads, references -------------------------------------------------------------------------------


@pytest.mark.watched
@pytest.mark.provokes_refusals
def test_every_call_of_a_batch_fails(device, stream, driver_watch):
    pairs = Pairs(4)
    copy_batch(stream, pairs.sources, pairs.targets)  # looks for what the driver has, once
    calls = driver_watch.calls_of(lambda: copy_batch(stream, pairs.sources, pairs.targets, options=ANY))
    assert calls["cuMemcpyBatchAsync"] == 1
    for name, count in calls.items():
        for nth in range(1, count + 1):
            with driver_watch.fail(name, nth=nth, result="CUDA_ERROR_UNKNOWN") as failure:
                with pytest.raises(CUDAError, match=name):
                    copy_batch(stream, pairs.sources, pairs.targets, options=ANY)
            assert failure.fired == 1
            assert pairs.loans() == 0
    stream.sync()
    assert all(pairs.arrived())
    pairs.close()


def test_a_batch_racing_with_closes_uses_no_returned_address(device, stream):
    for _ in range(60):
        pairs = Pairs(4)
        outcomes = race(
            lambda p=pairs: copy_batch(stream, p.sources, p.targets),
            in_context(pairs.sources[3].close),
            in_context(pairs.targets[1].close),
        )
        assert outcomes[0] is None or isinstance(outcomes[0], OwnershipError), outcomes[0]
        assert not any(isinstance(outcome, Exception) for outcome in outcomes[1:])
        stream.sync()
        assert pairs.loans() == 0
        pairs.close()


def test_a_batch_leaves_no_references(device, stream):
    pairs = Pairs(3)
    options = [CopyOptions(src_location_hint=Host(0)), ANY, ANY]
    things = [*pairs.sources, *pairs.targets, stream, *options, options]
    copy_batch(stream, pairs.sources, pairs.targets, options=options)
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(50):
        copy_batch(stream, pairs.sources, pairs.targets, options=options)
        with pytest.raises(ValueError):
            copy_batch(stream, pairs.sources, pairs.targets[:1], options=options)
        with pytest.raises(TypeError):
            copy_batch(stream, pairs.sources, [*pairs.targets[:2], None], options=options)
        with pytest.raises(ValueError):
            copy_batch(stream, pairs.sources, pairs.targets[::-1], options=options)
    assert [sys.getrefcount(thing) for thing in things] == before
    stream.sync()
    pairs.close()


def test_one_buffer_may_be_the_source_of_many(device, stream):
    pairs = Pairs(1)
    targets = [pairs.resource.allocate(SMALL) for _ in range(5)]
    copy_batch(stream, pairs.sources * 5, targets)
    stream.sync()
    for target in targets:
        assert read(target.handle, SMALL) == pattern(SMALL)
        target.close()
    assert pairs.sources[0].loans == 0
    assert pairs.sources[0].ownership is Ownership.OWNED
    pairs.close()


# --- older and newer drivers -------------------------------------------------------------------------------------

PROGRAM = """
import cuda_driver_sim as sim
sim.activate()
from cuda.core import Device
from cuda.core.utils import CopyOptions, copy_batch
from python_resources import Plain
from support import read, write
device = Device(0)
device.set_current()
stream, resource = device.create_stream(), Plain()
def attempt(call):
    buffers = [resource.allocate(4096) for _ in range(4)]
    for index in (0, 1):
        write(buffers[index].handle, bytes([index + 1]) * 4096)
        write(buffers[index + 2].handle, bytes(4096))
    before = sim.calls()
    try:
        call(buffers[:2], buffers[2:])
        outcome = "done"
    except Exception as error:
        outcome = f"{type(error).__name__}: {str(error)[:64]}"
    calls = {n: c - before.get(n, 0) for n, c in sim.calls().items() if "Memcpy" in n and c != before.get(n, 0)}
    stream.sync()
    arrived = [read(buffers[index + 2].handle, 4096) == bytes([index + 1]) * 4096 for index in (0, 1)]
    assert all(buffer.loans == 0 for buffer in buffers)
    for buffer in buffers:
        buffer.close()
    print(outcome, calls, arrived, sep=" | ")
for order in ("stream", "any", "during_api_call"):
    options = CopyOptions(order)
    attempt(lambda s, d: copy_batch(stream, s, d, options=[CopyOptions(), options]))
    attempt(lambda s, d: [a.copy_to(b, stream=stream, options=options) for a, b in zip(s, d)])
attempt(lambda s, d: copy_batch(stream, s, d))
attempt(lambda s, d: [a.copy_to(b, stream=stream) for a, b in zip(s, d)])
assert not sim.refused()
"""


def outcomes(**settings):
    environment = {**os.environ, **settings}
    return child_output(PROGRAM, environment=environment).splitlines()


ALL = "[True, True]"
PLAIN = f"done | {{'cuMemcpyAsync': 2}} | {ALL}"
BATCH = f"done | {{'cuMemcpyBatchAsync': 1}} | {ALL}"
ATTRIBUTES = f"done | {{'cuMemcpyWithAttributesAsync': 2}} | {ALL}"
REFUSED = "RuntimeError: src_access_order=DURING_API_CALL"


@pytest.mark.sim_only
def test_a_driver_of_13_0_has_batches_and_no_attributes_for_single_copies():
    seen = outcomes(CUDA_DRIVER_SIM_VERSION="13.0")
    assert seen[:5] == [BATCH, PLAIN, BATCH, PLAIN, BATCH]
    assert seen[5].startswith(f"{REFUSED} requires a driver of CUDA 13.2")
    assert seen[5].endswith("{} | [False, False]")
    assert seen[6:] == [BATCH, PLAIN]


@pytest.mark.sim_only
def test_a_driver_of_13_2_has_attributes_for_single_copies():
    assert outcomes(CUDA_DRIVER_SIM_VERSION="13.2") == [BATCH, ATTRIBUTES] * 3 + [BATCH, PLAIN]


@pytest.mark.sim_only
def test_a_driver_without_batches_makes_one_copy_after_the_other():
    seen = outcomes(CUDA_DRIVER_SIM_ABSENT="cuMemcpyBatchAsync")
    assert seen[:4] == [PLAIN, PLAIN, PLAIN, PLAIN]
    assert seen[4].startswith(f"{REFUSED} at index 1 requires")
    assert seen[4].endswith("{} | [False, False]")  # nothing was copied, not even what could have been
    assert seen[6:] == [PLAIN, PLAIN]
