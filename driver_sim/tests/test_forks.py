# SPDX-License-Identifier: Apache-2.0
"""Forks at bad moments, and threads that are not the program's own."""

import pytest

from sim_helpers import run_test_program


def test_a_fork_while_others_are_refused():
    run_test_program(
        """
import ctypes, signal, threading
from sim_helpers import *
start()
driver = ctypes.CDLL("libcuda.so.1")
wrong = ctypes.c_uint64(12345)

def be_refused():
    while True:
        driver.cuMemFree_v2(wrong)

for _ in range(4):
    threading.Thread(target=be_refused, daemon=True).start()
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends it where it would wait for a mutex that nobody holds
        driver.cuMemAlloc_v2(None, 0)
        sim.live()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    )


@pytest.mark.simulation
def test_a_child_does_not_run_the_work_of_its_parent():
    run_test_program(
        """
import ctypes, signal
from sim_helpers import *
start()
memory = Mapped()  # which the child shares, as a file is behind it
stream = ok(cu.cuStreamCreate(1))
with sim.hold():
    ok(cu.cuMemsetD8Async(memory.base, 7, 16, stream))
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        assert ctypes.string_at(memory.base, 4) == bytes(4)
    else:
        signal.alarm(20)
        sim.run()
if child == 0:
    os._exit(0)
assert ctypes.string_at(memory.base, 4) == bytes([7]) * 4
"""
    )


@pytest.mark.simulation
def test_a_child_does_not_wait_for_a_host_function_of_its_parent():
    run_test_program(
        """
import ctypes, signal
from sim_helpers import *
start()
driver, usleep = ctypes.CDLL("libcuda.so.1"), ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
stream = ok(cu.cuStreamCreate(1))
assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), usleep, ctypes.c_void_p(400_000)) == 0
child = os.fork()
if child == 0:
    signal.alarm(20)
    sim.run()
    try:
        sim.run(int(stream))
    except ValueError:
        os._exit(0)
    os._exit(9)
assert os.waitpid(child, 0)[1] == 0
"""
    )


@pytest.mark.simulation
def test_a_host_function_may_not_wait():
    run_test_program(
        """
import ctypes, signal, threading
from sim_helpers import *
signal.alarm(30)
start()
driver = ctypes.CDLL("libcuda.so.1")
stream = ctypes.c_void_p(int(ok(cu.cuStreamCreate(1))))
plain = ctypes.c_uint64(int(ok(cu.cuMemAlloc(64))))
context = ctypes.c_void_p(int(ok(cu.cuCtxGetCurrent())))
answers, ran = [], threading.Event()

@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def wait(_):
    driver.cuCtxSetCurrent(context)
    answers.append(driver.cuStreamSynchronize(stream))
    answers.append(driver.cuCtxSynchronize())
    answers.append(driver.cuMemFree_v2(plain))
    try:
        sim.run(stream.value)
    except RuntimeError as error:
        answers.append(str(error).rpartition(" ")[2])
    ran.set()

assert driver.cuLaunchHostFunc(stream, wait, None) == 0
assert ran.wait(20)
ok(cu.cuStreamSynchronize(stream.value))
assert answers == [800, 800, 800, "CUDA_ERROR_NOT_PERMITTED"], answers
ok(cu.cuMemFree(plain.value))
"""
    )


@pytest.mark.simulation
def test_work_goes_on_when_the_context_it_waits_for_ends():
    run_test_program(
        """
import ctypes
from sim_helpers import *
start()
driver, usleep = ctypes.CDLL("libcuda.so.1"), ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
busy, event = ok(cu.cuStreamCreate(1)), ok(cu.cuEventCreate(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(1))))
other, pointer = ok(cu.cuStreamCreate(1)), ok(cu.cuMemAlloc(64))
assert driver.cuLaunchHostFunc(ctypes.c_void_p(int(busy)), usleep, ctypes.c_void_p(900_000)) == 0
ok(cu.cuEventRecord(event, busy))
ok(cu.cuStreamWaitEvent(other, event, 0))
ok(cu.cuMemsetD8Async(pointer, 1, 64, other))
assert cu.cuStreamQuery(other)[0] == cu.CUresult.CUDA_ERROR_NOT_READY
ok(cu.cuDevicePrimaryCtxReset(0))
ok(cu.cuStreamQuery(other))
"""
    )


def test_calls_of_children_are_counted_where_they_can_be_seen():
    assert run_test_program(
        """
import ctypes
from sim_helpers import *
driver = ctypes.CDLL("libcuda.so.1")

def in_child(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    print(sim.calls_in_children(), flush=True)  # the inner one ends without flushing

in_child(lambda: driver.cuStreamQuery(None))  # of a process that has not used the driver
start()
in_child(lambda: None)
in_child(lambda: driver.cuStreamQuery(None))
in_child(lambda: in_child(lambda: driver.cuMemFree_v2(ctypes.c_uint64(8))))
sim.reset()
in_child(lambda: driver.cuEventQuery(None))
""".replace("from sim_helpers import *", "import os\nfrom sim_helpers import *")
    ).splitlines() == [
        "{}",
        "{}",
        "{'cuStreamQuery': 1}",
        "{'cuMemFree': 1, 'cuStreamQuery': 1}",
        "{'cuMemFree': 1, 'cuStreamQuery': 1}",
        "{'cuEventQuery': 1}",
    ]
