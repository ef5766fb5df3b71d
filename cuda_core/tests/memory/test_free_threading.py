# SPDX-License-Identifier: Apache-2.0
"""What the layer does not leave to the GIL: one thread looks, takes or frees while another ends what it looks at.

With a GIL these run too, and find less. What the modules declare is checked everywhere.
"""

import contextlib
import ctypes
import gc
import importlib
import pkgutil
import sys
import threading
from pathlib import Path

import numpy
import pytest

import cuda.core
from buffer_kinds import SOURCES
from cuda.bindings import driver
from cuda.core import (
    Allocation,
    Buffer,
    CUDAError,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    MemoryResource,
    Ownership,
    OwnershipError,
    VirtualMemoryResource,
)
from cuda.core.graph import GraphBuilder
from cuda.core.utils import StridedMemoryView
from support import GRANULE, JOIN_SECONDS, check, child_output, free_memory, warnings_seen

ROOT = Path(__file__).resolve().parents[3]
THREADS = 8
UNLOCKED = not getattr(sys, "_is_gil_enabled", lambda: True)()
ROUNDS = 2000 if UNLOCKED else 300
GIL_SLOT, NOT_USED = 4, 1  # Py_mod_gil, Py_MOD_GIL_NOT_USED


# --- what is declared --------------------------------------------------------------------------------------------


def extension_modules():
    names = [module.name for module in pkgutil.walk_packages(cuda.core.__path__, "cuda.core.")]
    modules = [importlib.import_module(name) for name in names if not name.endswith("__main__")]
    return [one for one in modules if getattr(one, "__file__", "").endswith(".so")]


class Slot(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("value", ctypes.c_size_t)]


class Definition(ctypes.Structure):
    """PyModuleDef, behind its PyObject header and three fields of the interpreter's."""

    _fields_ = [
        ("header", ctypes.c_char * object.__basicsize__),
        ("interpreters", ctypes.c_void_p * 3),
        ("name", ctypes.c_char_p),
        ("doc", ctypes.c_char_p),
        ("size", ctypes.c_ssize_t),
        ("methods", ctypes.c_void_p),
        ("slots", ctypes.POINTER(Slot)),
    ]


@pytest.mark.skipif(sys.version_info < (3, 13), reason="before 3.13 a module has no such slot")
def test_every_module_declares_that_it_needs_no_gil():
    definition_of = ctypes.pythonapi.PyModule_GetDef
    definition_of.restype, definition_of.argtypes = ctypes.POINTER(Definition), [ctypes.py_object]
    modules = extension_modules()
    assert len(modules) > 80
    for module in modules:
        slots, said, index = definition_of(module).contents.slots, None, 0
        while slots[index].number:
            if slots[index].number == GIL_SLOT:
                said = slots[index].value
            index += 1
        assert said == NOT_USED, module.__name__


@pytest.mark.sim_only
def test_the_build_asks_for_the_declaration():
    assert '"freethreading_compatible": True' in (ROOT / "setup.py").read_text()
    assert "Free Threading" in (ROOT / "pyproject.toml").read_text()


IMPORT_ALL = """
import importlib, pkgutil, sys
import numpy
from cuda.bindings import driver
before = sys._is_gil_enabled()
import cuda.core
for module in pkgutil.walk_packages(cuda.core.__path__, "cuda.core."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
print(before, sys._is_gil_enabled())
"""


@pytest.mark.skipif(not UNLOCKED, reason="needs an interpreter without a GIL")
def test_importing_everything_leaves_the_gil_off():
    said = child_output(IMPORT_ALL, environment={"PYTHON_GIL": ""}).split()
    if said[0] == "True":
        pytest.skip("what this package needs switches the GIL on")
    assert said == ["False", "False"]


# --- threads ------------------------------------------------------------------------------------------------------


def together(*works):
    """Run each function over and over in threads of its own, as often as the first says; return what they raised."""
    context, errors = check(driver.cuCtxGetCurrent()), []
    start = threading.Barrier(len(works))

    def run(work):
        check(driver.cuCtxSetCurrent(context))
        start.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert errors == []


LOOKS = {
    "memory_resource": lambda buffer: buffer.memory_resource,
    "owner": lambda buffer: buffer.owner,
    "text": repr,
    "error": lambda buffer: buffer.fill(b"\0\0\0", stream=None),
    "is_host_accessible": lambda buffer: buffer.is_host_accessible,
    "release_on_collection": lambda buffer: buffer.release_on_collection,
    "ipc_descriptor": lambda buffer: buffer.ipc_descriptor,
    "detach": lambda buffer: Buffer.adopt(buffer.detach()).close(),
}


class Own(LegacyPinnedMemoryResource):
    """Its life is the buffer's: a look at what an ended buffer had would find it gone."""


@pytest.mark.parametrize("look", LOOKS)
def test_looking_at_a_buffer_that_another_thread_closes(device, look):
    shown, done = [None], threading.Event()

    def watch():
        while not done.is_set():
            try:
                LOOKS[look](shown[0])
            except (AttributeError, RuntimeError, BufferError, TypeError, ValueError, CUDAError):
                pass

    def close():
        for _ in range(ROUNDS):
            buffer = Own().allocate(64)
            part = buffer[0:8] if look in ("owner", "is_host_accessible") else None
            shown[0] = buffer if part is None else part
            for one in (buffer, part) if look == "owner" else (part, buffer):
                try:
                    if one is not None:
                        one.close()
                except OwnershipError:  # it is being detached
                    pass
        done.set()

    with warnings_seen():
        together(watch, close, watch, watch)
        shown.clear()
        gc.collect()


@pytest.mark.parametrize("kind", ["pinned", "device", "pool"])
def test_a_direct_deallocate_against_the_end_of_the_allocation(device, kind):
    """The way from the address to its Allocation is not counted: either it is found in time, or it is gone."""
    source = SOURCES[kind](device)
    source.allocate(64).close()
    resource, outcomes = source.resource, []
    row = [source.allocate(64).detach() for _ in range(ROUNDS)]
    addresses = [allocation.handle for allocation in row]

    def drop():
        while row:
            row.pop(0)

    def free():
        for address in addresses:
            try:
                resource.deallocate(address, 64, stream=device.default_stream)
                outcomes.append(address)
            except (OwnershipError, ValueError):
                pass

    with warnings_seen():
        together(drop, free)
        gc.collect()
    assert sorted(outcomes) == sorted(addresses)


@pytest.mark.parametrize("kind", ["pool", "pinned pool"])
def test_the_index_of_a_pool_is_built_while_its_buffers_end(device, kind):
    for _ in range(ROUNDS // 50):
        source = SOURCES[kind](device)
        rows = [[source.allocate(64) for _ in range(40)] for _ in range(3)]
        kept = [source.allocate(64) for _ in range(20)]
        resource = source.resource

        def end(row):
            while row:
                row.pop()

        def index(kept=kept, resource=resource):
            for buffer in kept:
                with pytest.raises(OwnershipError, match="has an owner already"):
                    Buffer.from_handle(buffer.handle, 64, mr=resource)

        together(index, index, *[lambda row=row: end(row) for row in rows])
        for buffer in kept:
            buffer.close()


def test_options_are_assigned_while_others_allocate(device):
    resource = VirtualMemoryResource(device)
    free = free_memory()
    peers = [(), (0,)]
    done = threading.Event()

    def assign():
        for number in range(ROUNDS):
            resource.config.peers = peers[number % 2]
        done.set()

    def allocate():
        while not done.is_set():
            resource.allocate(GRANULE).close()

    together(assign, allocate, allocate, allocate)
    assert free_memory() == free


@pytest.mark.parametrize("kind", ["pinned", "device", "pool"])
def test_of_many_that_take_one_address_one_does(device, kind):
    source = SOURCES[kind](device)
    source.allocate(64).close()
    resource = source.resource
    for _ in range(ROUNDS // 10):
        allocation = source.allocate(64).detach()
        address = allocation.handle
        allocation.handed_over()
        taken = []

        def take(address=address, taken=taken):
            try:
                taken.append(Buffer.from_handle(address, 64, mr=resource))
            except OwnershipError:
                pass

        together(*[take] * THREADS)
        assert len([buffer for buffer in taken if buffer.ownership is Ownership.OWNED]) == 1
        for buffer in taken:
            buffer.close()


class Watched(MemoryResource):
    is_device_accessible, is_host_accessible, device_id, unique_addresses = True, False, 0, True

    def deallocate(self, ptr, size, *, stream=None):
        pass


def test_of_many_that_take_one_address_of_a_python_resource_one_does(device):
    resource = Watched()
    for _ in range(ROUNDS // 10):
        taken = []

        def take(taken=taken):
            try:
                taken.append(Buffer.from_handle(0x10000, 64, mr=resource, stream=device.default_stream))
            except OwnershipError:
                pass

        together(*[take] * THREADS)
        assert len(taken) == 1
        taken.pop().close()


@pytest.mark.parametrize("kind", ["pinned", "device", "pool", "managed pool"])
def test_a_direct_deallocate_while_the_memory_changes_hands(device, kind):
    """Between the hand-over and its entry the address belongs to nobody that is known, and to somebody all the same."""
    source = SOURCES[kind](device)
    source.allocate(64).close()
    resource = source.resource
    for _ in range(ROUNDS // 20):
        box = [source.allocate(64)]
        address, done = box[0].handle, threading.Event()

        def hand_round(box=box, done=done):
            try:
                for _ in range(20):
                    allocation = box[0].detach()
                    try:
                        box[0] = Buffer.adopt(allocation)
                    except OwnershipError:  # it was freed by hand
                        box.clear()
                        return
            finally:
                done.set()

        def free(address=address, done=done, box=box):
            while not done.is_set():
                try:
                    resource.deallocate(address, 64, stream=device.default_stream)
                except OwnershipError:
                    continue
                return

        with warnings_seen():
            together(hand_round, free)
        assert [buffer.close().name for buffer in box] in ([], ["DONE"])


def test_allocations_change_hands_while_others_look(device):
    resource = LegacyPinnedMemoryResource()
    for _ in range(ROUNDS // 20):
        box = [resource.allocate(64)]
        done = threading.Event()

        def hand_round(box=box, done=done):
            for _ in range(20):
                box[0] = box[0].detach()
                box[0] = Buffer.adopt(box[0])
            done.set()

        def look(box=box, done=done):
            while not done.is_set():
                one = box[0]
                repr(one)
                _ = one.memory_resource, one.owner, one.transferred_to, one.loans
                if isinstance(one, Allocation):
                    _ = one.streams

        together(hand_round, look, look)
        assert box[0].ownership is Ownership.OWNED
        box[0].close()


# --- everything, while another thread closes it -------------------------------------------------------------------


def closed_slice(device, stream):
    """Its owner is the last way to the loan, and so to the buffer and its resource."""
    buffer = Own().allocate(64)
    part = buffer[0:8]
    buffer.close()
    return part


def view_of_buffer(device, stream):
    return StridedMemoryView.from_buffer(Own().allocate(64), (64,), itemsize=1)


def view_of_array(device, stream):
    return StridedMemoryView.from_dlpack(numpy.zeros(4, "i4"), stream_ptr=-1)


def begun(device, stream):
    return device.create_graph_builder().begin_building()


def forked(device, stream):
    return begun(device, stream).split(2)


def completed(device, stream):
    builder = begun(device, stream).end_building()
    graph = builder.complete()
    builder.close()
    return graph


def grow(buffer):
    resource = buffer.memory_resource
    if resource is not None:
        resource.modify_allocation(buffer, buffer.size + GRANULE).close()


# What is made anew in each round, and what one thread each does with it over and over.
USES = {
    "slice": (
        closed_slice,
        lambda part: part.close(),
        lambda part: part.close(),
        lambda part: part.owner,
        lambda part: part[0:4].close(),
        lambda part: StridedMemoryView.from_buffer(part, (8,), itemsize=1).close(),
        lambda part: part.__dlpack__(stream=-1),
    ),
    "view": (
        view_of_buffer,
        lambda view: view.close(),
        lambda view: view.close(),
        lambda view: view.exporting_obj,
        lambda view: view.view(dtype=numpy.dtype("u1")).close(),
        lambda view: StridedMemoryView.from_any_interface(view.view(dtype=numpy.dtype("u1")), -1).close(),
        repr,
    ),
    "view of an array": (
        view_of_array,
        lambda view: view.close(),
        lambda view: view.__dlpack__(),
        lambda view: view.dtype,
        lambda view: view.size,
        lambda view: view.view(dtype=numpy.dtype("u4")).close(),
    ),
    "pool": (
        lambda device, stream: DeviceMemoryResource(device, {"max_size": 32 << 20}),
        lambda pool: pool.close(),
        lambda pool: pool.close(),
        lambda pool: pool.allocate(64, stream=other_stream()).close(),
        lambda pool: pool.attributes.used_mem_current,
    ),
    "builder": (
        begun,
        lambda builder: builder.close(),
        lambda builder: builder.end_building(),
        lambda builder: builder.end_building(),
        lambda builder: builder.split(2)[1].close(),
        lambda builder: builder.complete().close(),
        lambda builder: builder.is_building,
        repr,
    ),
    "join": (
        forked,
        lambda forks: GraphBuilder.join(*forks),
        lambda forks: GraphBuilder.join(*forks),
        lambda forks: forks[1].close(),
        lambda forks: forks[1].is_building,
    ),
    "graph": (
        completed,
        lambda graph: graph.close(),
        lambda graph: graph.launch(other_stream()),
        lambda graph: graph.handle,
        repr,
    ),
    "allocation": (
        lambda device, stream: Own().allocate(64).detach(),
        lambda allocation: Buffer.adopt(allocation).close(),
        lambda allocation: allocation.streams,
        lambda allocation: allocation.owner,
        repr,
    ),
    "buffer": (
        lambda device, stream: Own().allocate(64),
        lambda buffer: Buffer.adopt(buffer.detach()).close(),
        lambda buffer: buffer.close(),
        lambda buffer: buffer.memory_resource,
        lambda buffer: buffer.record_stream(other_stream()),
        repr,
    ),
    "virtual": (
        lambda device, stream: VirtualMemoryResource(device).allocate(GRANULE),
        lambda buffer: buffer.close(),
        grow,
        lambda buffer: buffer[0:8].close(),
        lambda buffer: Buffer.adopt(buffer.detach()).close(),
        lambda buffer: buffer.record_stream(other_stream()),
        lambda buffer: buffer.mapped_size,
    ),
    "event": (
        lambda device, stream: stream.record(),
        lambda event: event.close(),
        lambda event: event.sync(),
        lambda event: event.is_done,
        lambda event: other_stream().wait(event),
        repr,
    ),
    "stream": (
        lambda device, stream: device.create_stream(),
        lambda stream: stream.close(),
        lambda stream: stream.sync(),
        lambda stream: stream.record().close(),
        lambda stream: other_stream().wait(stream),
        repr,
    ),
    "array view": (
        lambda device, stream: Own().allocate(64).array_view(),
        lambda view: view.close(),
        lambda view: view.__array_interface__,
        repr,
    ),
}


def other_stream():
    return cuda.core.Device(0).default_stream


@pytest.mark.parametrize("kind", USES)
def test_everything_is_used_while_others_close_it(device, stream, kind):
    """It is refused in so many words, or it is done: nobody meets a half of what another thread is emptying."""
    make, *uses = USES[kind]
    shown, done = [None], threading.Event()

    def over_and_over(use):
        while not done.is_set():
            one = shown[0]
            try:
                if one is not None:
                    use(one)
            except (RuntimeError, BufferError, ValueError):
                pass

    def adopt_what_nobody_has():
        if isinstance(shown[0], Allocation):
            with contextlib.suppress(OwnershipError):
                Buffer.adopt(shown[0]).close()

    def replace():
        try:
            for _ in range(ROUNDS // 4):
                adopt_what_nobody_has()
                shown[0] = make(device, stream)
            adopt_what_nobody_has()
        finally:
            done.set()

    with warnings_seen():
        together(replace, *[lambda use=use: over_and_over(use) for use in uses])
        shown.clear()
        gc.collect()
