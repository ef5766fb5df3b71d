# SPDX-License-Identifier: Apache-2.0
"""Every public entry in the child of a process that has used the driver: none calls it, whatever it is called on.

Names are read from the classes, so that a new method or property is looked at without an edit here; one that needs
arguments has to be added to the table.
"""

import re

import pytest

from fork_tools import EVERYTHING
from support import child_output

pytestmark = pytest.mark.watched

LOOK = r"""
import copy, inspect, pickle, traceback
import cuda.core as core
from cuda.core import audit, graph, utils
from cuda.core import DeviceMemoryResourceOptions, Host, LEGACY_DEFAULT_STREAM, LegacyPinnedMemoryResource
from cuda.core import ManagedBuffer, ManagedMemoryResource, PER_THREAD_DEFAULT_STREAM, PinnedMemoryResource
from cuda.core import VirtualMemoryResourceOptions, memory_report
from cuda.core._dlpack import DLDeviceType

warnings.resetwarnings()
warnings.simplefilter("ignore")
buffer, other = alive["pinned"], alive["legacy pinned"]
pooled, managed, virtual = alive["pool"], alive["managed pool"], alive["virtual"]
shared = DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True))
shared_pinned = PinnedMemoryResource({"ipc_enabled": True})
shared_buffer = shared.allocate(4096, stream=stream)
shared_virtual = VirtualMemoryResource(device, VirtualMemoryResourceOptions(handle_type="posix_fd"))
shared_chunks = shared_virtual.allocate(1)
shared_event = stream.record(options=EventOptions(ipc_enabled=True))
names = shared_buffer.ipc_descriptor, shared_chunks.ipc_descriptor, shared_event.ipc_descriptor
pickles = [pickle.dumps(one) for one in (device, shared_event)]
advised = ManagedBuffer.from_handle(managed.handle, managed.size, owner=managed)
legacy, new = device.default_stream, alive["new builder"]
strided = alive["tensor of pinned"]
pools = sources["pool"].resource
asked = Device(1) if len(Device.get_all_devices()) > 1 else device
known = asked.name, device.name, device.properties.warp_size, device.uuid
graph_memory = GraphMemoryResource(device)
python = sources["python"].resource
try:
    bus = device.pci_bus_id
except Exception:
    pass

# What is looked at: all that stands in the class of each. ``set`` are entries that can be assigned.
THINGS = {
    "Device": device, "other Device": asked, "DeviceProperties": device.properties,
    "other DeviceProperties": asked.properties, "Context": alive["context"],
    "Stream": stream, "foreign Stream": alive["foreign stream"], "default Stream": legacy,
    "legacy Stream": LEGACY_DEFAULT_STREAM, "per-thread Stream": PER_THREAD_DEFAULT_STREAM,
    "Event": alive["event"], "recorded Event": alive["recorded event"], "shared Event": shared_event,
    "GraphBuilder new": new, "GraphBuilder building": alive["builder"], "GraphBuilder branch": alive["fork builder"],
    "GraphBuilder ended": alive["ended builder"], "Graph": alive["graph"],
    "GraphMemoryResource": graph_memory, "GraphMemoryResource attributes": graph_memory.attributes,
    "shared DeviceMemoryResource": shared, "shared PinnedMemoryResource": shared_pinned,
    "pool attributes": pools.attributes, "peers": pools.peer_accessible_by, "Host": Host(), "numbered Host": Host(0),
    "local Host": Host.numa_current(), "ManagedBuffer": advised, "shared Buffer": shared_buffer,
    "shared virtual Buffer": shared_chunks, "lost Allocation": alive["allocation of pinned"],
    "StridedMemoryView": strided, "ArrayView": alive["view of pinned"],
}
for kind, source in sources.items():
    if source.built_in:
        THINGS["resource " + kind] = source.resource
    for what in ("", "legacy ", "slice of ", "rest of "):
        THINGS["Buffer " + what + kind] = alive[what + kind]

# Arguments for what needs some: several calls for an entry that can be called in several ways.
ARGUMENTS = {
    "Device.allocate": [dict(size=16, stream=legacy), dict(size=16, stream=stream)],
    "Device.can_access_peer": [(0,), (asked,)], "Device.set_current": [(), (alive["context"],)],
    "Device.create_stream": [(), (stream,), (alive["foreign stream"],), (None, {"priority": 0})],
    "Stream.wait": [(alive["event"],), (legacy,), (stream,)], "Stream.from_handle": [(1,), (4096,)],
    "Stream.record": [(), (alive["event"],)],
    "Event.from_ipc_descriptor": [(names[2],)],
    "GraphBuilder.callback": [(print,)], "GraphBuilder.split": [(2,)],
    "GraphBuilder.join": [(alive["builder"], alive["fork builder"])],
    "GraphBuilder.debug_dot_print": [("/dev/null",)],
    "GraphBuilder.complete": [(), ({"upload_stream": legacy},)],
    "Graph.launch": [(legacy,), (stream,)], "Graph.upload": [(legacy,)], "Graph.update": [(alive["ended builder"],)],
    "allocate": [dict(size=16, stream=legacy), dict(size=16, stream=stream), dict(size=16),
                 dict(size=0, stream=legacy)],
    "deallocate": [(4096, 16), dict(ptr=4096, size=16, stream=legacy), (0, 0)],
    "checked_free": [(4096, 16), dict(ptr=4096, size=16)],
    "modify_allocation": [(virtual, 64 << 20)], "shrink": [(virtual, 1)], "trim": [()],
    "VirtualMemoryResource.trim": [(virtual,)], "set_access": [(virtual, device, "r")],
    "get_access": [(virtual, device)], "pause": [(virtual,)], "resume": [(virtual,)],
    "DeviceMemoryResource.from_allocation_handle": [(0, shared.allocation_handle)],
    "PinnedMemoryResource.from_allocation_handle": [(shared_pinned.allocation_handle,)],
    "from_registry": [(shared.uuid,)], "register": [(shared.uuid,)],
    "Buffer.from_handle": [(4096, 16), dict(ptr=4096, size=16, mr=sources["pinned"].resource),
                           dict(ptr=4096, size=16, mr=pools, stream=legacy)],
    "Buffer.adopt": [(alive["allocation of pinned"],)],
    "Buffer.from_ipc_descriptor": [
        dict(mr=shared, ipc_descriptor=names[0], stream=legacy),
        dict(mr=shared_virtual, ipc_descriptor=names[1], stream=legacy),
    ],
    "Buffer.copy_to": [dict(dst=other, stream=legacy), dict(stream=legacy)],
    "Buffer.copy_from": [dict(src=other, stream=legacy)],
    "Buffer.fill": [dict(value=0, stream=legacy), dict(value=0, stream=stream)],
    "Buffer.move_to": [(sources["virtual"].resource,)],
    "Buffer.record_stream": [(stream,), (legacy,)], "Buffer.set_deallocation_stream": [(stream,), (legacy,)],
    "Buffer.prefetch": [dict(location=device, stream=legacy), dict(location=Host(), stream=legacy)],
    "Buffer.discard": [dict(stream=legacy)], "Buffer.discard_prefetch": [dict(location=device, stream=legacy)],
    "view": [()],
    "StridedMemoryView.from_any_interface": [(alive["view of pinned"], -1), (buffer, -1)],
    "StridedMemoryView.from_dlpack": [(buffer, -1), (pooled, 1), (strided, -1)],
    "StridedMemoryView.from_array_interface": [(alive["view of pinned"],)],
    "StridedMemoryView.from_cuda_array_interface": [(alive["view of device"], 1), (alive["view of device"], -1)],
    "StridedMemoryView.from_buffer": [(buffer, strided.layout if hasattr(strided, "layout") else None)],
    "StridedMemoryView.copy_to": [(strided, legacy)], "StridedMemoryView.copy_from": [(strided, legacy)],
    "add": [(0,), (asked,)], "discard": [(0,), (asked,)], "remove": [(0,)], "update": [([0],)],
    "isdisjoint": [([0],)], "difference": [([0],)], "union": [([0],)], "intersection": [([0],)],
    "symmetric_difference_update": [([0],)], "symmetric_difference": [([0],)],
    "__eq__": [(None,)], "__ne__": [(None,)], "__sub__": [(alive["event"],)], "__rsub__": [(1,)],
    "__getitem__": [(slice(0, 4),)],
    "__contains__": [(0,)], "__exit__": [(None, None, None)], "__dlpack__": [(), dict(stream=1), dict(stream=-1)],
    "__deepcopy__": [({},)], "__reduce_ex__": [(2,)],
}
# Object protocols that reach code of the package. What is left out is Python's own.
SPECIAL = [
    "__repr__", "__hash__", "__int__", "__len__", "__iter__", "__bool__", "__eq__", "__ne__", "__sub__", "__getitem__",
    "__contains__", "__enter__", "__exit__", "__dlpack__", "__dlpack_device__", "__cuda_stream__", "__reduce__",
    "__reduce_ex__", "__copy__", "__deepcopy__", "__cuda_array_interface__", "__array_interface__",
]
FUNCTIONS = {
    "Device()": Device, "Device(0)": lambda: Device(0), "Device(1)": lambda: Device(1),
    "Device(device)": lambda: Device(device),
    "VirtualMemoryResource(device)": lambda: VirtualMemoryResource(device),
    "VirtualMemoryResource(0)": lambda: VirtualMemoryResource(0),
    "VirtualMemoryResource(host)": lambda: VirtualMemoryResource(device, {"location_type": "host_numa"}),
    "DeviceMemoryResource(0)": lambda: DeviceMemoryResource(0),
    "DeviceMemoryResource(0, {})": lambda: DeviceMemoryResource(0, {}),
    "DeviceMemoryResource(device)": lambda: DeviceMemoryResource(device),
    "PinnedMemoryResource()": PinnedMemoryResource, "PinnedMemoryResource({})": lambda: PinnedMemoryResource({}),
    "ManagedMemoryResource()": ManagedMemoryResource, "ManagedMemoryResource({})": lambda: ManagedMemoryResource({}),
    "LegacyPinnedMemoryResource()": LegacyPinnedMemoryResource,
    "GraphMemoryResource(0)": lambda: GraphMemoryResource(0),
    "LegacyPinnedMemoryResource().allocate": lambda: LegacyPinnedMemoryResource().allocate(16),
    "Host()": Host, "Host(0)": lambda: Host(0), "Host.numa_current()": Host.numa_current,
    "memory_report()": memory_report, "text of a report": lambda: str(memory_report()),
    "copy_batch": lambda: utils.copy_batch([buffer], [other], stream=legacy),
    "prefetch_batch": lambda: utils.prefetch_batch([advised], device, stream=legacy),
    "discard_batch": lambda: utils.discard_batch([advised], stream=legacy),
    "discard_prefetch_batch": lambda: utils.discard_prefetch_batch([advised], device, stream=legacy),
    "unpickled Device": lambda: pickle.loads(pickles[0]), "unpickled Event": lambda: pickle.loads(pickles[1]),
    "a copy of a Device": lambda: copy.copy(device), "drain": lambda: drain(0),
    "Graph options": lambda: graph.GraphCompleteOptions(upload_stream=legacy),
    "audit": audit.start if hasattr(audit, "start") else dir,
}

def entries(thing):
    for name in dir(type(thing)):
        if name in SPECIAL or not name.startswith("_"):
            yield name, inspect.getattr_static(type(thing), name)

def arguments(thing, name):
    keys = [f"{kind.__name__}.{name}" for kind in type(thing).__mro__] + [name]
    return next((ARGUMENTS[key] for key in keys if key in ARGUMENTS), [()])

def called(thing, name, static, given):
    what = getattr(thing, name)
    if callable(what) and not isinstance(static, property):
        what = what(**given) if isinstance(given, dict) else what(*given)
    if inspect.isgenerator(what) or name == "__iter__":
        list(what)
    return what

def look(label, call):
    before = sum(sim.calls_in_children().values())
    said = "-"
    try:
        call()
    except Exception as error:
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
    after = dict(sim.calls_in_children())
    lines.append(f"{label}\t{sum(after.values()) - before}\t{said}")

lines = []
def child():
    for group, thing in THINGS.items():
        ordered = sorted(entries(thing), key=lambda entry: entry[0] in ("close", "__exit__", "discard", "detach"))
        for name, static in ordered:
            for number, given in enumerate(arguments(thing, name)):
                look(f"{group}|{name}|{number}", lambda: called(thing, name, static, given))
        if hasattr(type(thing), "memory_resource") and type(thing) is Device:
            look(f"{group}|set memory_resource|0", lambda: setattr(thing, "memory_resource", pools))
    for name, function in FUNCTIONS.items():
        look(f"functions|{name}|0", function)
    print("\n".join(lines))
    sys.stdout.flush()
in_child(child)
"""

# Not a refusal for the sake of the fork: what is asked there is wrong, absent or not done in any process.
OTHER_REASONS = re.compile(
    "AttributeError|TypeError|ValueError|NotImplementedError|BufferError|KeyError|StopIteration|is not in this build|"
    "IPC-enabled|has been closed|is not|cannot|building|belongs to device|for green contexts|send it through"
)


@pytest.fixture(scope="module")
def seen():
    """What each entry has done in a child: group, entry, driver calls, and what it has raised."""
    output = child_output(EVERYTHING + LOOK + "\nos._exit(0)", timeout=300)
    lines = [line.split("\t", 2) for line in output.splitlines() if line.count("\t") >= 2]
    assert output.splitlines()[-1].startswith("child 0"), output[-3000:]
    return [(*label.split("|"), int(calls), said) for label, calls, said in lines]


GROUPS = (
    "Device",
    "DeviceProperties",
    "Context",
    "Stream",
    "Event",
    "GraphBuilder",
    "Graph",
    "Resource",
    "attributes",
    "peers",
    "Host",
    "Buffer",
    "Allocation",
    "View",
    "functions",
)


def group_of(label):
    return next(
        (name for name in sorted(GROUPS, key=len, reverse=True) if name.lower() in label.lower()), None
    )


@pytest.mark.parametrize("group", GROUPS)
def test_no_entry_calls_the_driver_in_a_child(seen, group):
    mine = [line for line in seen if group_of(line[0]) == group]
    assert mine
    assert [line for line in mine if line[3]] == []


@pytest.mark.parametrize("group", GROUPS)
def test_what_is_refused_in_a_child_says_why(seen, group):
    """An error there is about the fork or the argument, never one of a driver that was asked in vain."""
    wrong = [
        line
        for line in seen
        if group_of(line[0]) == group
        and line[4] != "-"
        and not re.search("fork|lost", line[4])
        and not OTHER_REASONS.search(line[4])
    ]
    assert wrong == []


def test_every_entry_is_called_with_arguments_that_it_takes(seen):
    """Or its body would not be reached."""
    wrong = "positional argument|keyword-only|missing|unexpected keyword|unhashable"
    reached = {line[:2] for line in seen if not re.search(wrong, line[4])}
    assert {line[:2] for line in seen} - reached == set()


def test_every_object_is_in_a_group(seen):
    assert {line[0] for line in seen if group_of(line[0]) is None} == set()
    assert len(seen) > 900


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Device", "__repr__"),
        ("DeviceProperties", "warp_size"),
    ],
)
def test_what_was_asked_in_the_parent_may_be_answered(seen, label, name):
    assert [line[4] for line in seen if line[:2] == (label, name)] in (["-"], [])
