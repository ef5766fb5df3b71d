# SPDX-License-Identifier: Apache-2.0
"""What a process runs out of: mappings, threads, addresses. And settings that are none."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import cuda_driver_sim as sim
from sim_helpers import run_test_program
from test_sanitizers import cuda_include

pytestmark = pytest.mark.simulation

# A process may have this many mappings, unless somebody has set it higher.
with open("/proc/sys/vm/max_map_count") as file:
    needs_a_limit = pytest.mark.skipif(int(file.read()) > 300_000, reason="no limit to run into")

TOOLS = """
import ctypes, mmap, os, resource, sys
from sim_helpers import *
driver = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p

def use_up_mappings():
    # Neighbours with different rights are not joined.
    count = 0
    page, start = ctypes.c_size_t(4096), ctypes.c_long(0)
    while libc.mmap(None, page, count % 2, 0x22, -1, start) != 2**64 - 1:
        count += 1

def survives(address):
    # Whether a process can read the byte.
    read, write = os.pipe()
    return libc.write(write, ctypes.c_void_p(address), ctypes.c_size_t(1)) == 1

start()
stream = ok(cu.cuStreamCreate(1))
"""


@needs_a_limit
def test_graph_memory_without_mappings():
    run_test_program(
        TOOLS
        + """
ok(cu.cuStreamBeginCapture(stream, cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
pointer = ok(cu.cuMemAllocAsync(4096, stream))
ok(cu.cuMemsetD8Async(pointer, 1, 4096, stream))
ok(cu.cuMemFreeAsync(pointer, stream))
graph = ok(cu.cuGraphInstantiate(ok(cu.cuStreamEndCapture(stream)), 0))
launch, wait = driver.cuGraphLaunch, driver.cuStreamSynchronize
arguments = ctypes.c_void_p(int(graph)), ctypes.c_void_p(int(stream))
use_up_mappings()
answers = launch(*arguments), wait(arguments[1])
os._exit(0 if answers == (2, 0) else 9)
"""
    )


@needs_a_limit
def test_unmapping_without_mappings():
    run_test_program(
        TOOLS
        + """
memory = Mapped()
ok(cu.cuMemAddressReserve(GRANULE, 0, 0, 0))  # or the two are one mapping of the process
apart = Mapped()
use_up_mappings()
assert driver.cuMemUnmap(ctypes.c_uint64(memory.base), ctypes.c_uint64(GRANULE)) == 0
assert not survives(memory.base) and survives(apart.base)
os._exit(0)
"""
    )


@needs_a_limit
def test_an_export_that_cannot_move_all_mappings_moves_none():
    run_test_program(
        TOOLS
        + """
size = 3 * GRANULE
one = ok(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0))
two = ok(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0))
three = ok(cu.cuMemCreate(GRANULE, properties_of_chunk(), 0))
# Neighbours in one file are one mapping, which would have to be divided.
base = int(ok(cu.cuMemAddressReserve(size, 0, 0, 0)))
for place, chunk in enumerate((one, two, three)):
    ok(cu.cuMemMap(base + place * GRANULE, GRANULE, 0, chunk, 0))
ok(cu.cuMemSetAccess(base, size, [read_write()], 1))
here = base + GRANULE
ctypes.memset(here, 5, 16)
out = ctypes.c_int(-1)
arguments = ctypes.byref(out), ctypes.c_uint64(int(two)), 1, ctypes.c_uint64(0)
use_up_mappings()
refused = driver.cuMemExportToShareableHandle(*arguments)
kept = ctypes.string_at(here, 16) == bytes([5]) * 16
os._exit(0 if refused == 304 and kept else 9)
"""
    )


@needs_a_limit
def test_memory_that_cannot_be_closed_is_not_handed_out_again():
    # A free in the middle divides a mapping in three, which a process can have too many of.
    run_test_program(
        TOOLS
        + """
pointers = [int(ok(cu.cuMemAlloc(4096))) for _ in range(9)]
for pointer in pointers:
    ctypes.memset(pointer, 5, 4096)
middle = pointers[4]
use_up_mappings()
assert driver.cuMemFree_v2(ctypes.c_uint64(middle)) == 0
byte = ctypes.string_at(middle, 1) if survives(middle) else b"\\0"
os._exit(0 if byte == b"\\0" else 9)
"""
    )


def test_no_thread_for_host_functions():
    run_test_program(
        TOOLS
        + """
function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
handle = ctypes.c_void_p(int(stream))
unlimited = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (1 << 20, unlimited[1]))
answers = driver.cuLaunchHostFunc(handle, function, None), driver.cuStreamSynchronize(handle)
resource.setrlimit(resource.RLIMIT_AS, unlimited)
assert answers == (304, 0), answers
assert driver.cuLaunchHostFunc(handle, function, None) == 0
assert driver.cuStreamSynchronize(handle) == 0
"""
    )


def test_a_process_with_few_addresses_has_pools_all_the_same():
    # A sanitizer leaves about as many. What the other kinds of memory get must not be taken from the pools.
    run_test_program(
        """
import resource
from sim_helpers import *
resource.setrlimit(resource.RLIMIT_AS, (300 << 30, 300 << 30))
start()
stream = ok(cu.cuStreamCreate(1))
pools = [make_pool(shareable=bool(i % 2)) for i in range(10)]
pointers = [ok(cu.cuMemAllocFromPoolAsync(4 << 30, pool, stream)) for pool in pools[:1]]
pointers += [ok(cu.cuMemAllocFromPoolAsync(32 << 20, pool, stream)) for pool in pools[1:]]
assert Mapped() and ok(cu.cuMemAlloc(1 << 30))
""",
    )


def test_too_few_addresses_are_said():
    out = run_test_program(
        """
import resource, sys
from sim_helpers import *
sys.stderr = sys.stdout
resource.setrlimit(resource.RLIMIT_AS, (100 << 30, 100 << 30))
os.dup2(1, 2)
for _ in range(2):
    print(cu.cuInit(0)[0].name, flush=True)
"""
    )
    assert out.splitlines() == [
        "cuda_driver_sim: the process cannot have 128 GiB of addresses (ulimit -v?): "
        "cuInit answers CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_UNKNOWN",
    ]


def test_too_few_descriptors_are_said():
    out = run_test_program(
        """
import resource
from sim_helpers import *
os.dup2(1, 2)
cu.cuDriverGetVersion()  # loads the library
used = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
print(cu.cuInit(0)[0].name)
"""
    )
    assert out.splitlines() == [
        "cuda_driver_sim: no file in memory can be made (Too many open files): "
        "cuInit answers CUDA_ERROR_UNKNOWN",
        "CUDA_ERROR_UNKNOWN",
    ]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CUDA_DRIVER_SIM_MEMORY", value)
        for value in (
            *("abc", "-1", "-5", "0", "1", "1MiB", "1MB", "17TiB", "16777217TiB", "99999999999999999999"),
            *(
                "GiB",
                " 4GiB",
                "4 GiB of it",
                "4GBiB",
                "4XiB",
                "0x10000000",
                "4e",
                "4e-1",
                "1e99",
                "1e9999999999",
                ".5GiB",
            ),
        )
    ]
    + [("CUDA_DRIVER_SIM_HOST_MEMORY", "1e")]
    + [
        ("CUDA_DRIVER_SIM_DEVICES", value)
        for value in ("abc", "-1", "17", "2x", "1.5", "99999999999999999999")
    ],
)
def test_a_setting_that_is_none_is_said_once(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    out = run_test_program(
        """
import signal
from sim_helpers import *
os.dup2(1, 2)
print(cu.cuInit(0)[0].name, cu.cuInit(0)[0].name, flush=True)
# A fork afterwards used to wait for itself.
signal.alarm(20)
if os.fork() == 0:
    os._exit(0)
assert os.wait()[1] == 0
"""
    )
    first, second = out.splitlines()
    assert first.startswith(f"cuda_driver_sim: {variable} is '{value}', and must be a number")
    assert second == "CUDA_ERROR_UNKNOWN CUDA_ERROR_UNKNOWN"


@pytest.mark.parametrize(
    ("value", "bytes"),
    [
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        ("4 GiB", 4 << 30),
        ("4G", 4 << 30),
        ("4g", 4 << 30),
        ("0.5T", 512 << 30),
        ("1.5GiB", 3 << 29),
        ("4096K", 4 << 20),
        ("6KiB", None),
        ("4GB", 4 * 10**9),
        ("4 gb", 4 * 10**9),
        ("64MB", 64 * 10**6),
        ("64000KB", 64 * 10**6),
        ("1e9", 10**9),
        ("1.5E+9", 15 * 10**8),
        ("2TB", 2 * 10**12),
        ("123456789", 123456789),
        ("123456789B", 123456789),
    ],
)
def test_units(value, bytes, monkeypatch):
    monkeypatch.setenv("CUDA_DRIVER_SIM_MEMORY", value)
    out = run_test_program(
        "from sim_helpers import *; print(cu.cuInit(0)[0].name, (cu.cuDeviceTotalMem(0) or [0])[1])"
    )
    result, total = out.split()
    if bytes is None:
        assert result == "CUDA_ERROR_UNKNOWN"
    else:
        assert (result, int(total)) == ("CUDA_SUCCESS", bytes // (2 << 20) * (2 << 20))


@pytest.mark.parametrize("value", ["", "2MiB", "512GiB", "1TiB", "16TiB"])
def test_settings_at_their_ends(value, monkeypatch):
    monkeypatch.setenv("CUDA_DRIVER_SIM_MEMORY", value)
    monkeypatch.setenv("CUDA_DRIVER_SIM_DEVICES", "16")
    run_test_program(
        """
from sim_helpers import *
start()
total = ok(cu.cuMemGetInfo())[1]
bytes = min(total, 64 << 20)
answer = cu.cuMemAllocAsync(bytes, 0)[0]
assert answer == (cu.CUresult.CUDA_SUCCESS if total > 32 << 20 else cu.CUresult.CUDA_ERROR_OUT_OF_MEMORY)
ok(cu.cuMemAlloc(min(bytes, 1 << 20)))
ok(cu.cuDevicePrimaryCtxRetain(15))
"""
    )


EXIT = r"""
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
CUdeviceptr pointer, made_late;
CUcontext context;
CUstream stream;
struct Last {
    ~Last() {
        for (int i = 1; i < 200; ++i)  // what lived on the thread is overwritten
            memset(malloc(8 * i), 0x41, 8 * i);
        CUcontext current = nullptr;
        int good = cuCtxGetCurrent(&current) == 0 && current == context && cuMemAlloc(&made_late, 10) == 0 &&
                   cuMemFree(made_late) == 0 && cuMemFree(pointer) == 0 && cuStreamSynchronize(stream) == 0 &&
                   cuStreamDestroy(stream) == 0;
        fputs(good ? "good\n" : "bad\n", stderr);
    }
} last;
int main() {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
    cuMemAlloc(&pointer, 100);
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    atexit([] { cuMemAlloc(&made_late, 10), cuMemFree(made_late); });
}
"""


@pytest.mark.skipif(not shutil.which("g++") or cuda_include() is None, reason="needs g++ and cuda.h")
def test_destructors_of_the_program_come_last(tmp_path):
    (tmp_path / "ends.cpp").write_text(EXIT)
    library = sim.library_path()
    link = ["-Wl,--no-as-needed", library, f"-Wl,-rpath,{Path(library).parent}"]
    command = ["g++", f"-I{cuda_include()}", str(tmp_path / "ends.cpp"), *link, "-o", str(tmp_path / "ends")]
    subprocess.run(command, check=True, timeout=300)
    env = {key: value for key, value in os.environ.items() if key != "CUDA_DRIVER_SIM_REAL"}
    done = subprocess.run([tmp_path / "ends"], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stderr) == (0, "good\n")
