# SPDX-License-Identifier: Apache-2.0
"""A buffer that is going, and one that has hardly begun: callbacks, hidden finalizers, failed constructors."""

import pytest

from cuda.core import (
    Allocation,
    Buffer,
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedBuffer,
    ManagedMemoryResource,
    MemoryResource,
    PinnedMemoryResource,
    VirtualMemoryResource,
)
from support import attempt, run_child, warnings_seen

RESOURCES = [
    DeviceMemoryResource,
    LegacyPinnedMemoryResource,
    ManagedMemoryResource,
    MemoryResource,
    PinnedMemoryResource,
    VirtualMemoryResource,
]


@pytest.mark.sim_only
def test_a_callback_that_builds_the_index_leaves_the_dying_alone():
    """The callbacks of weak references run when nothing refers to the buffer any more, before it has gone. Whoever
    takes a reference then ends it twice. In a process of its own: where this fails, that one crashes."""
    done = run_child(
        """
import gc, warnings, weakref
from cuda.core import CUDAError, Device, DeviceMemoryResource
import cuda_driver_sim as sim
device = Device(0)
device.set_current()
stream = device.create_stream()
resource = DeviceMemoryResource(0)
kept = resource.allocate(64, stream=stream)
calls = []

def callback(reference):
    calls.append(reference())
    try:
        resource.deallocate(0x7000, 64, stream=stream)  # looks through all open buffers
    except CUDAError:
        calls.append("refused")

warnings.simplefilter("ignore")
for _ in range(20):
    buffer = resource.allocate(4096, stream=stream)
    reference = weakref.ref(buffer, callback)
    with sim.fail("cuMemFreeAsync", sticky=True):
        del buffer
gc.collect()
for _ in range(100):
    resource.allocate(4096, stream=stream).close()
assert calls == [None, "refused"] * 20, calls
try:
    resource.deallocate(kept.handle, 64, stream=stream)
except RuntimeError as error:
    print("an open buffer owns" in str(error), kept.close().name)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True DONE\n", "")


class Silent(ManagedBuffer):
    """Its finalizer hides the inherited one."""

    def __del__(self):
        pass


class Calling(ManagedBuffer):
    def __del__(self):
        super().__del__()


@pytest.fixture
def managed(device, stream):
    with ManagedMemoryResource().allocate(4096, stream=stream) as buffer:
        yield buffer


def test_a_function_that_a_hidden_finalizer_could_not_ask_is_told_of(managed):
    """A Python function cannot be asked when the object itself goes: in a cycle it may be gone. It is told of."""
    freed = []
    buffer = Silent.from_handle(managed.handle, 64, deallocate=lambda *what: freed.append(what))
    address = buffer.handle
    with warnings_seen() as seen:
        del buffer
    assert freed == []
    [warning] = seen
    assert f"{address:#x}" in str(warning.message)
    assert "without its finalizer" in str(warning.message)


def test_a_finalizer_that_calls_the_inherited_one_frees(managed):
    freed = []
    buffer = Calling.from_handle(managed.handle, 64, deallocate=lambda *what: freed.append(what))
    with warnings_seen() as seen:
        del buffer
    assert len(freed) == 1
    assert seen == []


def test_what_was_closed_before_a_hidden_finalizer_is_quiet(managed):
    buffer = Silent.from_handle(managed.handle, 64, deallocate=lambda *what: None)
    buffer.close()
    with warnings_seen() as seen:
        del buffer
    assert seen == []


@pytest.mark.parametrize(
    "kind", [Buffer, ManagedBuffer, Allocation, *RESOURCES], ids=lambda kind: kind.__name__
)
def test_odd_arguments_of_new_do_no_harm(kind):
    """Before, the constructor in C was left before there were any fields, and what then ended the object used them."""
    done = run_child(
        f"from cuda.core import {kind.__name__} as kind\n"
        "for keywords in ({1: 2}, {'other': 3}, {('a',): None}):\n"
        "    thing = kind.__new__(kind, 1, **keywords)\n"
        "    del thing\n"
        "print('ended')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("kind", RESOURCES, ids=lambda kind: kind.__name__)
def test_a_class_whose_attributes_raise_makes_no_object(kind):
    """The constructor asks the class for ``at_exit``, which may fail by the metaclass."""
    done = run_child(
        f"from cuda.core import {kind.__name__} as kind\n"
        "class Meta(type(kind)):\n"
        "    def __getattr__(cls, name):\n"
        "        raise ZeroDivisionError(name)\n"
        "class Odd(kind, metaclass=Meta):\n"
        "    pass\n"
        "try:\n"
        "    Odd.__new__(Odd)\n"
        "except ZeroDivisionError as error:\n"
        "    print(error)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "at_exit\n", "")


@pytest.mark.parametrize("kind", [Buffer, ManagedBuffer], ids=lambda kind: kind.__name__)
def test_a_buffer_that_was_never_begun_is_a_closed_one(kind):
    buffer = kind.__new__(kind)
    assert buffer.is_closed
    assert (buffer.handle, buffer.size, buffer.memory_resource, buffer.owner) == (0, 0, None, None)
    assert buffer.close().name == "NOTHING"
    _, error = attempt(buffer.detach)
    assert "Buffer has been closed" in str(error)
