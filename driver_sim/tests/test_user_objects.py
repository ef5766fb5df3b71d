# SPDX-License-Identifier: Apache-2.0
"""When the user objects of graphs end: with their last holder, and launches in flight hold them, too.

That launches hold them, over an update and over the end of the executable, was recorded on an H200
(`what_updates_and_launches_keep`).
"""

import threading

import pytest

import cuda_driver_sim as sim
from sim_helpers import HostFunction, UserObjects, captured, cu, ok, run_test_program, soon

pytestmark = pytest.mark.simulation  # work is held


@pytest.fixture
def plain():
    made = ok(cu.cuMemAlloc(64))
    yield made
    ok(cu.cuMemFree(made))


@pytest.fixture
def streams():
    made = [ok(cu.cuStreamCreate(1)) for _ in range(3)]
    yield made
    for each in made:
        ok(cu.cuStreamDestroy(each))


@pytest.fixture
def objects():
    made = UserObjects()
    yield made
    assert live() == 0


@pytest.fixture
def ended(objects, other_stream):
    """Which ones have ended, also while work is held: destructors and host functions have one thread."""
    nothing = HostFunction(lambda _: None)

    def ask():
        ok(nothing.on(other_stream)())
        ok(cu.cuStreamSynchronize(other_stream))
        return objects.ended

    return ask


def live():
    return sim.live().get("user_object", 0)


def executable_of(graph):
    """What is instantiated from a graph; the graph goes."""
    made = ok(cu.cuGraphInstantiate(graph, 0))
    ok(cu.cuGraphDestroy(graph))
    return made


def set_byte(stream, plain, value=1):
    return lambda: cu.cuMemsetD8Async(plain, value, 8, stream)


def owning(objects, number, stream, *work):
    """An executable that alone holds a new object."""
    graph = captured(stream, *work)
    objects.give(graph, number)
    return executable_of(graph)


# --- launches in flight -----------------------------------------------------------------------------------


@pytest.mark.parametrize("launches", [0, 1, 2, 50])
def test_an_object_lasts_as_long_as_launches_of_its_executable(launches, stream, plain, objects, ended):
    executable = owning(objects, 1, stream, set_byte(stream, plain))
    with sim.hold():
        for _ in range(launches):
            ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        assert ended() == ([] if launches else [1])
        assert live() == (1 if launches else 0)
        ok(cu.cuStreamSynchronize(stream))
        assert ended() == [1]
        assert live() == 0
    assert ended() == [1]


def test_the_last_launch_on_any_stream_ends_it(streams, plain, objects, ended):
    executable = owning(objects, 1, streams[0], set_byte(streams[0], plain))
    with sim.hold():
        for stream in streams * 2:
            ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        for stream in streams:
            assert ended() == []
            ok(cu.cuStreamSynchronize(stream))
        assert ended() == [1]


def test_launches_alone_do_not_end_it(stream, plain, objects, ended):
    executable = owning(objects, 1, stream, set_byte(stream, plain))
    for _ in range(3):
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamSynchronize(stream))
    assert ended() == []
    ok(cu.cuGraphExecDestroy(executable))
    assert ended() == [1]


@pytest.mark.parametrize("held", [True, False])
def test_a_graph_without_work_is_in_flight_as_well(held, stream, objects, ended):
    """Until what is in front of it on its stream has run."""
    executable = owning(objects, 1, stream)
    gate = threading.Event()
    function = HostFunction(lambda _: gate.wait(20))
    if held:
        with sim.hold():
            ok(cu.cuGraphLaunch(executable, stream))
            ok(cu.cuGraphExecDestroy(executable))
            assert ended() == []
            assert cu.cuStreamQuery(stream)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
    else:
        ok(function.on(stream)())
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        assert live() == 1
        gate.set()
        ok(cu.cuStreamSynchronize(stream))
    assert ended() == [1]


def test_a_stream_that_is_destroyed_still_ends_it(plain, objects, ended):
    stream = ok(cu.cuStreamCreate(1))
    executable = owning(objects, 1, stream, set_byte(stream, plain))
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuStreamDestroy(stream))
        ok(cu.cuGraphExecDestroy(executable))
        assert ended() == []
    assert ended() == [1]


def test_the_program_holds_it_longer(stream, plain, objects, ended):
    graph = captured(stream, set_byte(stream, plain))
    held = objects.make(1, references=2)
    ok(cu.cuGraphRetainUserObject(graph, held, 3, 0))
    executable = executable_of(graph)
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        ok(cu.cuUserObjectRelease(held, 1))
    assert ended() == []
    assert live() == 1
    ok(cu.cuUserObjectRelease(held, 1))
    assert ended() == [1]


def test_the_launch_holds_it_longer_than_the_program(stream, plain, objects, ended):
    graph = captured(stream, set_byte(stream, plain))
    held = objects.make(1)
    ok(cu.cuGraphRetainUserObject(graph, held, 1, 0))
    executable = executable_of(graph)
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        ok(cu.cuUserObjectRelease(held, 1))
        assert ended() == []
    assert ended() == [1]
    assert cu.cuUserObjectRelease(held, 1)[0] == cu.CUresult.CUDA_ERROR_INVALID_VALUE


@pytest.mark.parametrize("launches", [1, 2, 20])
def test_a_host_function_that_an_object_owns(launches, stream, objects, ended):
    """As the callback of a graph that is closed in flight: it is called before it goes."""
    calls = []
    function = HostFunction(lambda _: calls.append(list(objects.ended)))
    executable = owning(objects, 1, stream, function.on(stream), function.on(stream))
    with sim.hold():
        for _ in range(launches):
            ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        assert ended() == []
    ok(cu.cuStreamSynchronize(stream))
    assert ended() == [1]
    assert calls == [[]] * (2 * launches)


def test_a_host_function_that_is_running(stream, objects, ended):
    entered, gate = threading.Event(), threading.Event()
    function = HostFunction(lambda _: (entered.set(), gate.wait(20)))
    executable = owning(objects, 1, stream, function.on(stream))
    ok(cu.cuGraphLaunch(executable, stream))
    assert entered.wait(20)
    ok(cu.cuGraphExecDestroy(executable))
    assert live() == 1
    gate.set()
    ok(cu.cuStreamSynchronize(stream))  # what `ended` calls could be in front of the destructor otherwise
    assert ended() == [1]


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order(seed, streams, plain, objects, ended):
    executables = [
        owning(objects, number, streams[0], set_byte(streams[0], plain), set_byte(streams[0], plain))
        for number in (1, 2, 3)
    ]
    with sim.interleave(seed), sim.hold():
        for number, executable in enumerate(executables):
            for stream in streams[number:]:
                ok(cu.cuGraphLaunch(executable, stream))
            ok(cu.cuGraphExecDestroy(executable))
        assert live() == 3
        ok(cu.cuCtxSynchronize())
    assert sorted(ended()) == [1, 2, 3]


# --- updates ----------------------------------------------------------------------------------------------


def test_what_updates_hold_takes_the_place_of_what_was_held(stream, plain, objects):
    graphs = []
    for number in (1, 2):
        graphs.append(captured(stream, set_byte(stream, plain, number)))
        objects.give(graphs[-1], number)
    executable = executable_of(graphs[0])
    ok(cu.cuGraphExecUpdate(executable, graphs[1]))
    ok(cu.cuGraphDestroy(graphs[1]))
    assert soon(lambda: objects.ended == [1])
    ok(cu.cuGraphExecDestroy(executable))
    assert soon(lambda: objects.ended == [1, 2])


@pytest.mark.parametrize("first", [1, 2])
def test_each_launch_holds_what_it_was_launched_with(first, streams, plain, objects, ended):
    executable = owning(objects, 1, streams[0], set_byte(streams[0], plain, 1))
    other = captured(streams[0], set_byte(streams[0], plain, 2))
    objects.give(other, 2)
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, streams[1]))
        ok(cu.cuGraphExecUpdate(executable, other))
        ok(cu.cuGraphDestroy(other))
        assert ended() == []
        ok(cu.cuGraphLaunch(executable, streams[2]))
        ok(cu.cuGraphExecDestroy(executable))
        assert ended() == []
        ok(cu.cuStreamSynchronize(streams[first]))
        assert ended() == [first]
        ok(cu.cuStreamSynchronize(streams[3 - first]))
        assert ended() == [first, 3 - first]


def test_an_object_of_both_graphs_stays_over_an_update(stream, plain, objects, ended):
    graphs = [captured(stream, set_byte(stream, plain, value)) for value in (1, 2)]
    held = objects.make(1)
    for graph in graphs:
        ok(cu.cuGraphRetainUserObject(graph, held, 1, 0))
    ok(cu.cuUserObjectRelease(held, 1))
    executable = executable_of(graphs[0])
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecUpdate(executable, graphs[1]))
        ok(cu.cuGraphDestroy(graphs[1]))
    assert ended() == []
    ok(cu.cuGraphExecDestroy(executable))
    assert ended() == [1]


def test_an_update_that_is_refused_holds_nothing(stream, plain, objects, ended):
    executable = owning(objects, 1, stream, set_byte(stream, plain))
    other = captured(stream, set_byte(stream, plain), set_byte(stream, plain))
    objects.give(other, 2)
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        assert cu.cuGraphExecUpdate(executable, other)[0] == cu.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
        assert ended() == []
        ok(cu.cuGraphDestroy(other))
        assert ended() == [2]
        ok(cu.cuGraphExecDestroy(executable))
        assert ended() == [2]
    assert ended() == [2, 1]


# --- destructors that call the driver ---------------------------------------------------------------------


def test_a_destructor_may_end_other_things(stream, plain):
    """No lock is held while it runs, and what it ends ends behind it."""
    inner = UserObjects()
    executables, memory = {2: owning(inner, 2, stream, set_byte(stream, plain))}, ok(cu.cuMemAllocHost(64))
    answers = []

    def end(number):
        if number == 1:
            answers.append(cu.cuGraphExecDestroy(executables.pop(2))[0])
            answers.append(cu.cuMemFreeHost(memory)[0])
            answers.append(cu.cuStreamQuery(stream)[0])

    outer = UserObjects(end)
    executable = owning(outer, 1, stream, set_byte(stream, plain))
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, stream))
        ok(cu.cuGraphExecDestroy(executable))
        assert executables
    assert soon(lambda: outer.ended == [1] and inner.ended == [2])
    assert answers == [cu.CUresult.CUDA_SUCCESS] * 3


def test_a_destructor_that_waits_is_refused(streams, plain):
    """Where the wait would never end."""
    answers = []
    objects = UserObjects(lambda number: answers.append(cu.cuStreamSynchronize(streams[1])[0]))
    executable = owning(objects, 1, streams[0], set_byte(streams[0], plain))
    with sim.hold():
        ok(cu.cuGraphLaunch(executable, streams[0]))
        ok(set_byte(streams[1], plain)())
        ok(cu.cuGraphExecDestroy(executable))
        ok(cu.cuStreamSynchronize(streams[0]))
        assert soon(lambda: objects.ended == [1])
    assert answers == [cu.CUresult.CUDA_ERROR_NOT_PERMITTED]


# --- contexts that end, faults, and the end of the process ------------------------------------------------

LOST = """
import sys, threading
from sim_helpers import *
start()
how, when, launches = sys.argv[1], sys.argv[2], int(sys.argv[3])
destroyed = how == "destroyed"
context = ok(cu.cuCtxCreate(None, 0, 0)) if destroyed else ok(cu.cuCtxGetCurrent())
streams = [ok(cu.cuStreamCreate(1)) for _ in range(3)]
plain = ok(cu.cuMemAlloc(64))
entered, gate = threading.Event(), threading.Event()
called = []
# What is called is on the thread of the destructors: both in the order in which they are.
function = HostFunction(lambda _: (called.append(list(objects.ended)), entered.set(), gate.wait(20)))
objects = UserObjects()
works = [lambda: cu.cuMemsetD8Async(plain, 1, 8, streams[0])]
if how == "reset while it runs":
    works.insert(0, function.on(streams[0]))
graph = captured(streams[0], *works)
objects.give(graph, 1)
executable = ok(cu.cuGraphInstantiate(graph, 0))
ok(cu.cuGraphDestroy(graph))

def end():
    if how.startswith("reset"):
        ok(cu.cuDevicePrimaryCtxReset(0))
    elif how == "released":
        ok(cu.cuDevicePrimaryCtxRelease(0))
    elif destroyed:
        ok(cu.cuCtxDestroy(context))
    elif how == "fault":
        print(cu.cuStreamSynchronize(streams[0])[0].name)

if how == "reset while it runs":
    ok(cu.cuGraphLaunch(executable, streams[0]))
    assert entered.wait(20)
with sim.hold():
    if how == "fault":
        memory = Mapped()
        ok(cu.cuMemsetD8Async(memory.base, 1, 8, streams[0]))
        memory.close()
    for stream in (streams * launches)[:launches]:
        ok(cu.cuGraphLaunch(executable, stream))
    if when == "before":
        ok(cu.cuGraphExecDestroy(executable))
    assert sim.live()["user_object"] == 1
    end()
    if when == "behind":
        assert sim.live()["user_object"] == 1
        ok(cu.cuGraphExecDestroy(executable))
    elif how == "reset while it runs":
        assert sim.live()["user_object"] == 1
    gate.set()
    if how != "fault":
        assert soon(lambda: objects.ended)
assert soon(lambda: objects.ended)
time.sleep(0.05)
print(objects.ended, sim.live().get("user_object", 0), called)
"""


@pytest.mark.parametrize("launches", [1, 2, 20])
@pytest.mark.parametrize("when", ["before", "behind"])
@pytest.mark.parametrize("how", ["reset", "released", "destroyed", "fault", "reset while it runs"])
def test_work_that_is_dropped_ends_it_once(how, when, launches):
    """The executable goes before or behind that."""
    said = run_test_program(LOST, how, when, str(launches)).splitlines()
    answer = ["CUDA_ERROR_ILLEGAL_ADDRESS"] if how == "fault" else []
    assert said == [*answer, "[1] 0 [[]]" if how == "reset while it runs" else "[1] 0 []"]


EXIT = """
from sim_helpers import *
start()
stream, plain = ok(cu.cuStreamCreate(1)), ok(cu.cuMemAlloc(64))
objects = UserObjects(lambda number: print("ended"))
graph = captured(stream, lambda: cu.cuMemsetD8Async(plain, 1, 8, stream))
objects.give(graph, 1)
executable = ok(cu.cuGraphInstantiate(graph, 0))
ok(cu.cuGraphDestroy(graph))
held = sim.hold()
held.__enter__()
ok(cu.cuGraphLaunch(executable, stream))
ok(cu.cuGraphExecDestroy(executable))
print(sim.live())
"""


def test_what_is_in_flight_when_the_process_ends_stays():
    assert run_test_program(EXIT).splitlines() == [
        str({"device_allocation": 1, "stream": 1, "user_object": 1, "primary_context": 1})
    ]


# --- many threads -----------------------------------------------------------------------------------------


def test_many_threads(context, plain):
    """Each launches what all share and what is its own, and ends it in flight."""
    threads, rounds = 4, 100
    objects = UserObjects()
    failed = []

    def work(thread):
        try:
            ok(cu.cuCtxSetCurrent(context))
            stream = ok(cu.cuStreamCreate(1))
            for turn in range(rounds):
                number = thread * rounds + turn + 1
                alive = HostFunction(lambda number: number in objects.ended and failed.append(number))
                kept.append(alive)
                calls = alive.on(stream, number), set_byte(stream, plain)
                executable = owning(objects, number, stream, *calls)
                with sim.hold():
                    for _ in range(1 + turn % 3):
                        ok(cu.cuGraphLaunch(executable, stream))
                        ok(cu.cuGraphLaunch(shared, stream))
                    ok(cu.cuGraphExecDestroy(executable))
                if turn % 10 == 0:
                    ok(cu.cuStreamSynchronize(stream))
            ok(cu.cuStreamDestroy(stream))
        except BaseException as error:
            failed.append(error)

    kept = []
    stream = ok(cu.cuStreamCreate(1))
    shared = owning(objects, 0, stream, set_byte(stream, plain))
    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    ok(cu.cuGraphExecDestroy(shared))
    ok(cu.cuCtxSynchronize())
    ok(cu.cuStreamDestroy(stream))
    assert soon(lambda: len(objects.ended) > threads * rounds)
    assert sorted(objects.ended) == list(range(threads * rounds + 1))
    assert not failed
    assert live() == 0
