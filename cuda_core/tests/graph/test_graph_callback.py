# SPDX-License-Identifier: Apache-2.0
"""Functions of the host in graphs: when they are called, what keeps them, and what is refused."""

import ctypes
import gc
import sys
import threading
import weakref

import pytest

from cuda.core import CUDAError
from graph_tools import MODES, SIZE, built, launch, round_trip, soon, status
from memory_kinds import pattern
from support import child_output, read

pytestmark = pytest.mark.usefixtures("device")

HOST = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Noting:
    """A function that can be watched by a weak reference."""

    def __init__(self):
        self.threads = []

    def __call__(self):
        self.threads.append(threading.get_ident())


@pytest.mark.parametrize("mode", MODES)
def test_a_python_function_is_called_in_every_launch(device, stream, mode):
    noting = Noting()
    with built(device, mode) as builder:
        assert builder.callback(noting) is None
    assert noting.threads == []
    graph = builder.complete()
    builder.close()
    launch(graph, stream, times=3)
    assert len(noting.threads) == 3
    assert threading.get_ident() not in noting.threads
    graph.close()


def test_a_callback_is_called_where_it_was_captured(device, stream, pair):
    source, target = pair
    seen = []
    held = (ctypes.c_char * SIZE).from_buffer(bytearray(SIZE))
    with built(device) as builder:
        builder.callback(lambda: seen.append("before"))
        round_trip(builder, source, target)
        first, second = builder.split(2)
        second.callback(lambda: seen.append("on the branch"))
        type(builder).join(first, second)
        builder.callback(lambda: seen.append("after"))
    graph = builder.complete()
    launch(graph, stream)
    assert seen == ["before", "on the branch", "after"]
    assert read(target.handle, SIZE) == pattern(SIZE)
    assert bytes(held) == bytes(SIZE)
    graph.close()
    builder.close()


@pytest.mark.parametrize("order", ["graph first", "builder first"])
def test_a_callback_lives_as_long_as_graph_and_executable(device, stream, order):
    box = [Noting()]
    gone = weakref.ref(box[0])
    with built(device) as builder:
        builder.callback(box[0])
    graph = builder.complete()
    box.clear()
    gc.collect()
    launch(graph, stream)
    first, then = (graph, builder) if order == "graph first" else (builder, graph)
    first.close()
    gc.collect()
    assert gone() is not None
    then.close()
    assert soon(lambda: gone() is None)


def test_a_function_of_c_is_given_its_data(device, stream):
    got = []

    @HOST
    def plain(pointer):
        got.append(pointer)

    @HOST
    def text(pointer):
        got.append(ctypes.string_at(pointer, 5))

    data = bytearray(b"hello")
    with built(device) as builder:
        builder.callback(plain, user_data=0x1234)
        builder.callback(plain, user_data=0)
        builder.callback(plain)
        builder.callback(text, user_data=data)
        builder.callback(text, user_data=memoryview(b"bytes"))
    data[:] = b"later"  # the graph has a copy
    graph = builder.complete()
    builder.close()
    launch(graph, stream)
    assert got == [0x1234, None, None, b"hello", b"bytes"]
    graph.close()


class Odd:
    def __call__(self):
        raise ValueError("from the callback")


def test_what_a_callback_raises_is_told_and_the_graph_goes_on(device, stream, monkeypatch):
    told, noting = [], Noting()
    monkeypatch.setattr(sys, "unraisablehook", lambda arguments: told.append(str(arguments.exc_value)))
    with built(device) as builder:
        builder.callback(Odd())
        builder.callback(noting)
    graph = builder.complete()
    builder.close()
    launch(graph, stream, times=2)
    assert told == ["from the callback"] * 2
    assert len(noting.threads) == 2
    graph.close()


def test_what_ends_the_program_ends_it():
    code = """
import sys, time
from cuda.core import Device
device = Device(0)
device.set_current()
builder = device.create_graph_builder().begin_building()
builder.callback(lambda: sys.exit(7))
graph = builder.end_building().complete()
try:
    graph.launch(builder.stream)
    builder.stream.sync()
    for _ in range(1000):
        time.sleep(0.01)
except SystemExit as error:
    print(error.code)
"""
    assert child_output(code) == "7\n"


def wrong_prototypes():
    yield ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda pointer: 0)
    yield ctypes.CFUNCTYPE(None)(lambda: None)
    yield ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
    yield ctypes.CDLL(None).free


@pytest.mark.parametrize(
    ("function", "user_data", "kind", "text"),
    [
        (None, None, TypeError, "callback must be callable, got NoneType"),
        (5, None, TypeError, "got int: 5"),
        ("name", None, TypeError, "got str: 'name'"),
        (print, 1, ValueError, "only supported with ctypes function pointers"),
        (print, b"", ValueError, "only supported with ctypes function pointers"),
        (HOST(0), None, ValueError, "null pointer"),
        ("host", 1.5, TypeError, "user_data must be an integer or bytes-like, got float: 1.5"),
        ("host", "text", TypeError, "got str: 'text'"),
        ("host", True, TypeError, "got bool: True"),
        ("host", -1, OverflowError, "got -1"),
        ("host", 2**64, OverflowError, f"got {2**64}"),
    ],
)
def test_wrong_arguments_are_refused_before_any_driver_call(
    driver_watch, builder, function, user_data, kind, text
):
    if function == "host":
        function = HOST(lambda pointer: None)
    with driver_watch.no_call(), pytest.raises(kind, match=text):
        builder.callback(function, user_data=user_data)
    assert status(builder.stream) == "ACTIVE"


@pytest.mark.parametrize(
    "function", list(wrong_prototypes()), ids=["result", "no argument", "number", "undeclared"]
)
def test_a_function_of_c_with_another_prototype_is_refused(driver_watch, builder, function):
    with driver_watch.no_call(), pytest.raises(TypeError, match=r"must have the prototype ctypes\.CFUNCTYPE"):
        builder.callback(function)


def test_a_builder_that_does_not_build_takes_none(driver_watch, device):
    builder = device.create_graph_builder()
    with driver_watch.no_call(), pytest.raises(RuntimeError, match="is not building"):
        builder.callback(print)
    builder.begin_building().end_building()
    with driver_watch.no_call(), pytest.raises(RuntimeError, match="is not building"):
        builder.callback(print)
    builder.close()
    with driver_watch.no_call(), pytest.raises(RuntimeError, match="has been closed"):
        builder.callback(print)


@pytest.mark.watched
@pytest.mark.provokes_refusals
@pytest.mark.parametrize(
    "name",
    [
        "cuStreamIsCapturing",
        "cuStreamGetCaptureInfo",
        "cuUserObjectCreate",
        "cuGraphRetainUserObject",
        "cuLaunchHostFunc",
    ],
)
def test_every_call_of_a_callback_fails(driver_watch, device, stream, builder, name):
    box = [Noting()]
    gone = weakref.ref(box[0])
    with driver_watch.fail(name, result="CUDA_ERROR_UNKNOWN") as failure:
        with pytest.raises(CUDAError, match=name):
            builder.callback(box[0])
    assert failure.fired == 1
    box.clear()
    gc.collect()
    assert soon(lambda: gone() is None)  # the graph keeps nothing
    noting = Noting()
    builder.callback(noting)
    graph = builder.end_building().complete()
    launch(graph, stream)
    assert len(noting.threads) == 1
    graph.close()


def test_a_callback_at_exit_is_silent():
    code = """
import time
from cuda.core import Device
device = Device(0)
device.set_current()
builder = device.create_graph_builder().begin_building()
builder.callback(lambda: time.sleep(0.05))
builder.callback(lambda: print("called", flush=True))
graph = builder.end_building().complete()
for _ in range(3):
    graph.launch(builder.stream)
"""
    assert set(child_output(code).splitlines()) <= {"called"}
