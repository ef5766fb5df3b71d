# SPDX-License-Identifier: Apache-2.0
"""In front of another driver: here a second copy of the simulated one, on a GPU the real one."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cuda_driver_sim as sim
from sim_helpers import run_python

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def beneath(tmp_path_factory):
    """A copy of the simulated driver under another path, which stands for the real one."""
    return shutil.copy(sim.library_path(), tmp_path_factory.mktemp("beneath"))


@pytest.fixture
def environment(beneath):
    """Of a process that is to have the library in front of the copy."""
    plain = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    return {**plain, "CUDA_DRIVER_SIM_REAL": str(beneath), "PYTHONPATH": str(HERE)}


# A free that waits in a queue is not live for whoever sees the calls alone.
NOT_KNOWN = "test_used_memory_falls_with_the_call_and_memory_returns_with_the_work"


@pytest.mark.parametrize(
    "name",
    ["watching", "failures", "faults", "pools", "capture", "sharing", "work_order", "command", "recordings"],
)
def test_the_other_tests_pass_in_front_of_it(name, environment):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "compare_with_beneath", "-k", f"not {NOT_KNOWN}"]
    done = subprocess.run(
        [*command, f"test_{name}.py"], cwd=HERE, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


# The program sees both sides: what this library says and what the driver beneath says itself.
BOTH = """
import ctypes, sys
import cuda_driver_sim as sim
sim.activate()
from sim_helpers import *
from compare_with_beneath import live_beneath
beneath = ctypes.CDLL(sim.real_path())

def calls_beneath():
    call = beneath.cudaDriverSimCalls
    call.restype, call.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(1 << 14)
    call(buffer, len(buffer))
    return {name: int(n) for name, n in map(str.split, buffer.value.decode().splitlines())}

def same():
    assert sim.live() == live_beneath(), (sim.live(), live_beneath())
    return sim.live()

ok(cu.cuInit(0))
context = ok(cu.cuDevicePrimaryCtxRetain(0))
ok(cu.cuCtxSetCurrent(context))
"""


def test_calls_reach_the_driver_beneath_once_and_injected_failures_do_not(environment):
    done = run_python(
        BOTH
        + """
sim.reset(); beneath.cudaDriverSimReset()
with sim.fail("cuMemMap", nth=2) as failure:
    memory = Mapped()
    try:
        Mapped()
    except AssertionError as error:
        print("second map:", error.args[0].name)
print(failure.fired, sim.calls()["cuMemMap"], calls_beneath()["cuMemMap"])
print(sim.refused()[0].name, same())
memory.close()
assert calls_beneath()["cuMemUnmap"] == sim.calls()["cuMemUnmap"] == 1
""",
        env=environment,
    )
    assert done.stdout.splitlines() == [
        "second map: CUDA_ERROR_OUT_OF_MEMORY",
        "1 2 1",
        "cuMemMap {'address_reservation': 2, 'physical_allocation': 2, 'mapping': 1, 'primary_context': 1}",
    ], done.stderr


def test_calls_that_fail_with_effect_reach_the_driver_beneath(environment):
    done = run_python(
        BOTH
        + """
sim.reset(); beneath.cudaDriverSimReset()
front, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(0)
with sim.fail("cuMemAlloc", effect=True), sim.fail("cuMemFree", result="CUDA_ERROR_UNKNOWN", effect=True):
    print(front.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(64)), same()["device_allocation"])
    print(front.cuMemFree_v2(pointer), "device_allocation" in same())
print([calls_beneath()[name] == sim.calls()[name] == 1 for name in ("cuMemAlloc", "cuMemFree")])
print([call.name for call in sim.refused()])
""",
        env=environment,
    )
    assert done.stdout.splitlines() == [
        "2 1",
        "999 False",
        "[True, True]",
        "['cuMemAlloc', 'cuMemFree']",
    ], done.stderr


def test_what_is_live_follows_each_step(environment):
    done = run_python(
        BOTH
        + """
same()
# Chunks live by their references and their mappings, whichever go last.
chunk = ok(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0)); same()
base = int(ok(cu.cuMemAddressReserve(4 * GRANULE, 0, 0, 0))); same()
for i in range(3):
    ok(cu.cuMemMap(base + i * GRANULE, GRANULE, 0, chunk, 0)); same()
ok(cu.cuMemRelease(chunk)); same()
again = ok(cu.cuMemRetainAllocationHandle(base + GRANULE)); same()
assert cu.cuMemUnmap(base, GRANULE // 2)[0] != 0; same()
ok(cu.cuMemUnmap(base, 3 * GRANULE)); same()
assert cu.cuMemAddressFree(base, GRANULE)[0] != 0; same()
ok(cu.cuMemRelease(again)); same()
assert cu.cuMemRelease(again)[0] != 0; same()
ok(cu.cuMemAddressFree(base, 4 * GRANULE)); same()

# What is freed must have been of the right kind.
plain, host = ok(cu.cuMemAlloc(64)), ok(cu.cuMemAllocHost(64)); same()
managed = ok(cu.cuMemAllocManaged(64, 1)); same()
assert cu.cuMemFree(int(host))[0] != 0; same()
assert cu.cuMemFreeHost(int(plain))[0] != 0; same()
ok(cu.cuMemFreeAsync(plain, 0)); same()
ok(cu.cuMemFree(managed)); same()
page = ctypes.create_string_buffer(8192)
ok(cu.cuMemHostRegister(ctypes.addressof(page), 4096, 0)); same()
ok(cu.cuMemHostUnregister(ctypes.addressof(page))); same()

# Pools, and graphs that allocate.
stream = ok(cu.cuStreamCreate(1)); same()
pointer = ok(cu.cuMemAllocAsync(64, stream)); same()
ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)); same()
kept, passing = ok(cu.cuMemAllocAsync(64, stream)), ok(cu.cuMemAllocAsync(64, stream)); same()
ok(cu.cuMemFreeAsync(passing, stream)); same()
assert cu.cuMemFreeAsync(pointer, stream)[0] != 0; same()
graph = ok(cu.cuStreamEndCapture(stream)); same()
executable = ok(cu.cuGraphInstantiate(graph, 0)); same()
ok(cu.cuGraphLaunch(executable, stream)); assert same()["graph_allocation"] == 1
assert cu.cuGraphLaunch(executable, stream)[0] != 0; same()
ok(cu.cuMemFreeAsync(kept, stream)); assert "graph_allocation" not in same()
ok(cu.cuGraphLaunch(executable, stream)); assert same()["graph_allocation"] == 1
ok(cu.cuGraphExecDestroy(executable)); same()
ok(cu.cuGraphDestroy(graph)); same()
ok(cu.cuMemFree(kept)); same()
ok(cu.cuMemFreeAsync(pointer, stream)); same()
# The handle of a graph that comes again: without memory this time.
ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
graph = ok(cu.cuStreamEndCapture(stream)); same()
executable = ok(cu.cuGraphInstantiate(graph, 0)); same()
ok(cu.cuGraphLaunch(executable, stream)); same()
ok(cu.cuGraphExecDestroy(executable)); ok(cu.cuGraphDestroy(graph)); same()

# User objects end with their last holder.
ended = ctypes.c_int(0)
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
@FUNCTION
def end(argument):
    ctypes.c_int.from_address(argument).value += 1
function = cu.CUhostFn(_ptr=ctypes.cast(ctypes.pointer(end), ctypes.c_void_p).value)
user = ok(cu.cuUserObjectCreate(ctypes.addressof(ended), function, 1, 1)); same()
graph = ok(cu.cuGraphCreate(0))
ok(cu.cuGraphRetainUserObject(graph, user, 1, 1)); same()
ok(cu.cuGraphDestroy(graph))
ok(cu.cuCtxSynchronize())
import time
for _ in range(200):
    if ended.value:
        break
    time.sleep(0.01)
assert ended.value == 1
same()

# What ends with its context.
own = ok(cu.cuCtxCreate(None, 0, 1)); same()
ok(cu.cuStreamCreate(0)); ok(cu.cuEventCreate(0)); ok(cu.cuMemAlloc(64)); ok(cu.cuMemAllocHost(64)); same()
ok(cu.cuCtxDestroy(own)); same()
ok(cu.cuCtxSetCurrent(context))
ok(cu.cuEventCreate(0)); ok(cu.cuMemAlloc(64)); ok(cu.cuMemAllocHost(64)); same()
ok(cu.cuMemAllocAsync(64, 0)); same()
left = Mapped(); same()
ok(cu.cuDevicePrimaryCtxReset(0))
print(same())
""",
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "{'address_reservation': 1, 'physical_allocation': 1, 'mapping': 1, 'pool_allocation': 1}\n"
    )


def test_threads_at_the_same_addresses(environment):
    """Freed handles and addresses come again at once in another thread; the count must stay right."""
    done = run_python(
        BOTH
        + """
import threading
def work():
    ok(cu.cuCtxSetCurrent(context))
    stream = ok(cu.cuStreamCreate(1))
    for i in range(300):
        a, b = ok(cu.cuMemAllocAsync(64, stream)), ok(cu.cuEventCreate(0))
        ok(cu.cuMemFreeAsync(a, stream)); ok(cu.cuEventDestroy(b))
        if i % 10 == 0:
            Mapped().close()
    ok(cu.cuStreamDestroy(stream))
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(same())
""",
        env=environment,
    )
    assert done.stdout == "{'primary_context': 1}\n", done.stderr


def test_the_child_of_a_fork_has_nothing(environment):
    done = run_python(
        BOTH
        + """
import os
memory = Mapped()
if os.fork() == 0:
    print(sim.live(), live_beneath(), cu.cuMemAlloc(64)[0].name, flush=True)
    os._exit(0)
os.wait()
memory.close()
""",
        env=environment,
    )
    assert done.stdout == "{} {} CUDA_ERROR_NOT_INITIALIZED\n", done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver", "subprocess"])
def test_children_have_it_too(method, environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import multiprocessing, subprocess, sys
import cuda_driver_sim as sim

def tell():
    from cuda.bindings import driver
    print(driver.cuInit(0)[0].name, sim.real_path(), sim.calls()["cuInit"], flush=True)

if __name__ == "__main__":
    sim.activate()
    if sys.argv[1] == "subprocess":
        code = "import program; program.tell()"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    else:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=tell)
        process.start(); process.join(60); assert process.exitcode == 0
"""
    )
    environment["PYTHONPATH"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, program, method], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == f"CUDA_SUCCESS {environment['CUDA_DRIVER_SIM_REAL']} 1\n", done.stderr


def test_command(environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        """
import cuda_driver_sim as sim
from cuda.bindings import driver as d
d.cuInit(0); d.cuCtxSetCurrent(d.cuDevicePrimaryCtxRetain(0)[1])
d.cuMemAlloc(64)
print(sim.real_path())
"""
    )
    command = [sys.executable, "-m", "cuda_driver_sim", "--real", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, environment["CUDA_DRIVER_SIM_REAL"] + "\n")
    assert done.stderr == "cuda_driver_sim: left live: 1 device allocation\n"


# --- another driver: it has a function more, and cannot hold work -------------------------------------------

OTHER_DRIVER = r"""
#include <dlfcn.h>
#include <string.h>
typedef unsigned long long u64;
static void *driver(void) {
    static void *opened;
    return opened ? opened : (opened = dlopen(BENEATH, RTLD_NOW | RTLD_LOCAL));
}
int cuArrayGetDescriptor_v2(void *descriptor, void *array) { return 123; }
int cuGetProcAddress_v2(const char *name, void **f, int version, u64 flags, int *status) {
    int (*get)(const char *, void **, int, u64, int *) = dlsym(driver(), "cuGetProcAddress_v2");
    if (strcmp(name, "cuArrayGetDescriptor") == 0) {
        *f = cuArrayGetDescriptor_v2;
        if (status)
            *status = 0;
        return 0;
    }
    return get(name, f, version, flags, status);
}
int cuGetProcAddress(const char *name, void **f, int version, u64 flags) {
    int status;
    int result = cuGetProcAddress_v2(name, f, version, flags, &status);
    return result ? result : *f ? 0 : 500;
}
"""


@pytest.fixture(scope="session")
def other_driver(beneath, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    (folder / "other.c").write_text(OTHER_DRIVER)
    library = folder / "libcuda.so.1"
    flags = ["-shared", "-fPIC", f'-DBENEATH="{beneath}"', "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]
    subprocess.run(["cc", *flags, folder / "other.c", "-o", library], check=True)
    return str(library)


def test_functions_that_are_not_simulated_reach_the_driver_and_are_not_counted(environment, other_driver):
    program = """
import ctypes
import cuda_driver_sim as sim
sim.activate()
from cuda.bindings import driver as d
d.cuInit(0)
print("cuArrayGetDescriptor" in sim.functions())
library = ctypes.CDLL("libcuda.so.1")
# By dlsym itself: older versions of ctypes do not survive a symbol that is there and null.
dlsym = ctypes.CDLL(None).dlsym
dlsym.restype, dlsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
print(library.cuArrayGetDescriptor_v2(None, None), dlsym(library._handle, b"cuLaunchKernel"))
found, status = ctypes.c_void_p(), ctypes.c_int()
def ask(name):
    no_flags = ctypes.c_ulonglong(0)
    return library.cuGetProcAddress_v2(name, ctypes.byref(found), 13000, no_flags, ctypes.byref(status))
TWO_POINTERS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
print(ask(b"cuArrayGetDescriptor"), TWO_POINTERS(found.value)(None, None))
print(ask(b"cuLaunchKernel"), found.value, "cuLaunchKernel" in sim.absent())
print(sorted(sim.calls()))
"""
    done = run_python(program, env={**environment, "CUDA_DRIVER_SIM_REAL": other_driver})
    assert done.stdout.splitlines() == ["False", "123 None", "0 123", "0 None True", "['cuInit']"], (
        done.stderr
    )


def test_work_of_a_real_driver_cannot_be_held(environment, other_driver):
    program = """
import cuda_driver_sim as sim
sim.activate()
for steer in (sim.hold(), sim.interleave(1)):
    try:
        with steer: pass
    except RuntimeError as error:
        print(error)
try:
    sim.run()
except RuntimeError as error:
    print(error)
print(sim.can_hold())
"""
    done = run_python(program, env={**environment, "CUDA_DRIVER_SIM_REAL": other_driver})
    message = "the work of a real driver cannot be held back or reordered"
    assert done.stdout.splitlines() == [message] * 3 + ["False"], done.stderr


@pytest.mark.parametrize("binding", ["now", "lazy"])
def test_a_program_that_is_linked_to_the_driver(environment, other_driver, binding, tmp_path):
    (tmp_path / "program.c").write_text(
        """
#include <stdio.h>
int cuInit(unsigned), cuDeviceGetCount(int *), cuArrayGetDescriptor_v2(void *, void *);
int main(void) {
    int count = 0, result = cuInit(0);
    printf("%d %d ", result, cuDeviceGetCount(&count));
    printf("%d %d\\n", count, cuArrayGetDescriptor_v2(0, 0));
}
"""
    )
    front = Path(sim.library_path(real=True)).parent
    program = tmp_path / "program"
    command = [
        "cc",
        tmp_path / "program.c",
        "-o",
        program,
        f"-Wl,-z,{binding}",
        f"-L{front}",
        "-l:libcuda.so.1",
    ]
    subprocess.run(command, check=True)
    env = {**environment, "CUDA_DRIVER_SIM_REAL": other_driver, "LD_LIBRARY_PATH": str(front)}
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "0 0 2 123\n"), done.stderr


# --- finding it ---------------------------------------------------------------------------------------------

ACTIVATE = """
import sys
import cuda_driver_sim as sim
try:
    sim.activate(real=True)
except RuntimeError as error:
    print(error)
else:
    print("active", sim.real_path())
"""


def test_it_is_never_found_in_this_package(environment, beneath, tmp_path):
    simulated, front = (str(Path(sim.library_path(real=real)).parent) for real in (False, True))
    env = {**environment, "CUDA_DRIVER_SIM_REAL": "1", "LD_LIBRARY_PATH": f"{simulated}:{front}:{tmp_path}"}
    shutil.copy(beneath, tmp_path)
    done = run_python(ACTIVATE, env=env)
    for path in (simulated, front, str(tmp_path)):
        assert path not in done.stdout
    assert "no real CUDA driver was found" in done.stdout or done.stdout.startswith("active /"), done.stderr


def test_it_is_found_in_the_library_path(environment, other_driver):
    folders = [str(Path(path).parent) for path in (sim.library_path(), other_driver)]
    env = {**environment, "CUDA_DRIVER_SIM_REAL": "1", "LD_LIBRARY_PATH": ":".join(folders)}
    assert run_python(ACTIVATE, env=env).stdout == f"active {other_driver}\n"


@pytest.mark.parametrize("what", ["missing", "no library", "itself", "no driver"])
def test_what_is_no_real_driver_is_refused(environment, what, tmp_path):
    path = tmp_path / "libcuda.so.1"
    expected = "the real driver cannot be loaded"
    if what == "missing":
        expected = "does not exist"
    elif what == "no library":
        path.write_text("text")
    elif what == "itself":
        path = sim.library_path(real=True)
        expected = "is this library itself"
    else:
        (tmp_path / "empty.c").write_text("int nothing;\n")
        subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "empty.c", "-o", path], check=True)
        expected = "has no cuGetProcAddress_v2"
    done = run_python(ACTIVATE, env={**environment, "CUDA_DRIVER_SIM_REAL": str(path)})
    assert expected in done.stdout, done.stderr


def test_a_process_keeps_its_driver(environment):
    program = """
import cuda_driver_sim as sim
first = {first}
sim.activate(real=first)
sim.activate(real=first)
sim.activate()
try:
    sim.activate(real=not first)
except RuntimeError as error:
    print(error)
"""
    for first, text in ((True, "simulated"), (False, "real")):
        done = run_python(program.format(first=first), env=environment)
        assert done.stdout.startswith(f"the {text} driver cannot be activated"), done.stderr


def test_without_a_real_driver_every_call_says_so(environment):
    front = sim.library_path(real=True)
    program = f"import ctypes; print(ctypes.CDLL({front!r}).cuInit(0))"
    del environment["CUDA_DRIVER_SIM_REAL"]
    assert run_python(program, env=environment).stdout == "34\n"  # CUDA_ERROR_STUB_LIBRARY


# --- the versions of the functions --------------------------------------------------------------------------


def test_versions_are_those_of_cuda():
    """A wrong version would put one of ours in front of a function with another signature."""
    folders = [Path(p) / "nvidia" / "cu13" / "include" / "cudaTypedefs.h" for p in sys.path]
    header = next((file for file in folders if file.exists()), None)
    if header is None:
        pytest.skip("needs the cudaTypedefs.h of nvidia-cuda-runtime")
    known = set(re.findall(r"PFN_(cu\w+?)_v(\d+)(?:_ptsz|_ptds)?\)", header.read_text()))
    sources = "".join(file.read_text() for file in sorted((HERE.parent / "src").glob("*.cpp")))
    ours = set(re.findall(r'^DRIVER_CALL\w*\((?:Needs::\w+,\s*)?"(cu\w+)",\s*\w+,\s*(\d+)', sources, re.M))
    assert len(ours) > 140
    assert sorted(ours - known) == []
