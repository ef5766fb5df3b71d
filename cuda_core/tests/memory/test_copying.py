# SPDX-License-Identifier: Apache-2.0
"""What can be copied and pickled, and what says that it cannot. Every extension class is in one of the lists here."""

import copy
import importlib
import inspect
import pickle
import pkgutil

import pytest

import cuda.core
from buffer_kinds import SOURCES
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    EventOptions,
    GraphMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    Ownership,
    Stream,
    StreamOptions,
    VirtualMemoryResource,
)
from cuda.core._layout import _StridedLayout
from cuda.core._memory._synchronous import _SynchronousMemoryResource
from cuda.core.graph import GraphCompleteOptions, GraphDebugPrintOptions
from cuda.core.utils import StridedMemoryView
from shared_pools import SHARED_EVENT, make

pytestmark = pytest.mark.usefixtures("device")
HEAP_TYPE = 1 << 9  # classes that were written in Python


def pool_of(kind, device):
    with SOURCES[kind](device).allocate() as buffer:
        return buffer.memory_resource


# By name of the class; each makes one on a device.
NEITHER = {
    "Buffer": lambda device: SOURCES["pinned"](device).allocate(),
    "ManagedBuffer": lambda device: SOURCES["managed pool"](device).allocate(),
    "Allocation": lambda device: SOURCES["pinned"](device).allocate().detach(),
    "Stream": lambda device: device.create_stream(),
    "Event": lambda device: device.create_event(),
    "Context": lambda device: device.context,
    "Graph": lambda device: (
        device.create_stream().create_graph_builder().begin_building().end_building().complete()
    ),
    "GraphBuilder": lambda device: device.create_stream().create_graph_builder(),
    "StridedMemoryView": lambda device: StridedMemoryView.from_buffer(
        SOURCES["pinned"](device).allocate(), shape=(8,), itemsize=1
    ),
    "DeviceMemoryResource": lambda device: pool_of("pool", device),
    "PinnedMemoryResource": lambda device: pool_of("pinned pool", device),
    "ManagedMemoryResource": lambda device: ManagedMemoryResource(),
    "LegacyPinnedMemoryResource": lambda device: LegacyPinnedMemoryResource(),
    "_SynchronousMemoryResource": lambda device: _SynchronousMemoryResource(device),
    "VirtualMemoryResource": lambda device: VirtualMemoryResource(device),
    "_GraphMemory": lambda device: GraphMemoryResource(device),
    "MemoryResource": lambda device: pool_of("python", device),
    "IPCAllocationHandle": lambda device: make().allocation_handle,
    "VirtualBufferDescriptor": lambda device: VirtualMemoryResource(device).allocate(4096).ipc_descriptor,
}
# Names and numbers. A pickle of a buffer's or an event's name is what other processes open.
BOTH = {
    "_StridedLayout": lambda device: _StridedLayout(shape=(2, 3), strides=None, itemsize=4),
    "GraphMemoryResourceAttributes": lambda device: GraphMemoryResource(device).attributes,
    "IPCBufferDescriptor": lambda device: make().allocate(64, stream=device.default_stream).ipc_descriptor,
    "IPCEventDescriptor": lambda device: device.default_stream.record(options=SHARED_EVENT).ipc_descriptor,
}
# A window on one pool: a copy shows the same one, a pickle is a pickle of the pool, where that is possible.
WINDOWS = {"_MemPoolAttributes"}
# Nobody has one of these: they are bases, or kept inside.
INSIDE = {
    "_CheckedFree",
    "_Growth",
    "_MemPool",
    "_SharedPool",
    "GraphPlace",
    "GraphReference",
    "GraphSource",
    "Holding",
    "HostCall",
    "ImportedTensor",
    "ImportReference",
    "IndexedResource",
    "Journal",
    "Keeper",
    "Launches",
    "Life",
    "Loan",
    "Loans",
    "PlainResource",
    "PoolReference",
    "Record",
    "Slot",
    "Stacks",
    "StreamCarrier",
    "Sums",
    "VirtualMemoryBase",
    "VirtualRange",
    "Word",
}
# A pickle of what was made to be shared is what other processes open. Else it is refused as cuda-core 1.2.2 does.
NOT_SHARED = {"Buffer", "ManagedBuffer", "Event", "DeviceMemoryResource", "PinnedMemoryResource"}
WAYS = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps}


def end(*objects):
    for one in objects:
        if getattr(one, "ownership", None) is Ownership.OWNED and hasattr(one, "handed_over"):
            cuda.core.Buffer.adopt(one).close()
        elif hasattr(one, "close") and not isinstance(one, cuda.core.Context):
            one.close()


def test_every_extension_class_is_listed():
    found = set()
    for module in pkgutil.walk_packages(cuda.core.__path__, "cuda.core."):
        if module.name.endswith("__main__"):
            continue
        for name, kind in vars(importlib.import_module(module.name)).items():
            mine = inspect.isclass(kind) and kind.__module__ == module.name and kind.__name__ == name
            if mine and not kind.__flags__ & HEAP_TYPE:
                found.add(name)
    assert found == NEITHER.keys() | BOTH.keys() | WINDOWS | INSIDE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NEITHER)
def test_what_stands_for_something_of_the_driver_says_so(device, name, way):
    one = NEITHER[name](device)
    error, match = TypeError, r"cannot be (copied|pickled)|can only be (pickled|sent)"
    if way == "pickle" and name in NOT_SHARED:
        error, match = RuntimeError, r"IPC-enabled|of no resource that could share it"
    with pytest.raises(error, match=match) as caught:
        WAYS[way](one)
    # In this package's words, not in those of the compiler or of Python.
    said = str(caught.value)
    assert "__reduce__" not in said
    assert "converted to a Python object" not in said
    end(one)


@pytest.mark.parametrize("way", [*WAYS, "pickle and back"])
@pytest.mark.parametrize("name", BOTH)
def test_names_and_numbers_can_be_copied_and_pickled(device, name, way):
    one = BOTH[name](device)
    assert type(one).__name__ == name
    other = pickle.loads(pickle.dumps(one)) if "pickle" in way else WAYS[way](one)
    assert type(other) is type(one)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_devices_hosts_and_options_can_be_copied_and_pickled(device, way):
    kinds = [getattr(cuda.core, name) for name in dir(cuda.core) if name.endswith("Options")]
    assert {StreamOptions, EventOptions} <= set(kinds)
    for kind in (*kinds, GraphCompleteOptions, GraphDebugPrintOptions):
        assert way(kind()) == kind()
    assert way(device) is device
    assert way(cuda.core.Host()) is cuda.core.Host()


def test_a_window_on_a_pool(device):
    resource = pool_of("pool", device)
    attributes = resource.attributes
    assert {type(attributes).__name__} == WINDOWS
    assert copy.copy(attributes).reserved_mem_high == attributes.reserved_mem_high
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(attributes)
    with pytest.raises(RuntimeError, match="IPC-enabled"):
        pickle.dumps(attributes)


def test_an_array_view_is_one_loan(device):
    with SOURCES["pinned"](device).allocate() as buffer:
        with buffer.array_view() as view:
            for way in WAYS.values():
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    way(view)
            assert buffer.loans == 1


@pytest.mark.parametrize("way", WAYS)
def test_streams_that_are_nobodys(device, way):
    for stream in (LEGACY_DEFAULT_STREAM, Stream.from_handle(int(device.create_stream().handle))):
        with pytest.raises(TypeError, match="Stream objects cannot be copied or pickled"):
            WAYS[way](stream)


def test_what_was_refused_is_still_good(device):
    with SOURCES["virtual"](device).allocate() as buffer:
        for way in WAYS.values():
            with pytest.raises(TypeError):
                way(buffer)
        assert buffer.ownership is Ownership.OWNED
        assert buffer.loans == 0
