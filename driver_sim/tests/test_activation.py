# SPDX-License-Identifier: Apache-2.0
"""The simulated driver is loaded when asked for, first, and reaches child processes."""

import multiprocessing
import os
import subprocess
import sys

import pytest

import cuda_driver_sim as sim
from sim_helpers import run_python

ASK = "from cuda.bindings import driver; print(driver.cuInit(0)[0].name, driver.cuDriverGetVersion()[1])"


def initialise(queue):
    from cuda.bindings import driver

    queue.put((driver.cuInit(0)[0].name, sim.is_active()))


def test_importing_has_no_effect():
    done = run_python(
        "import cuda_driver_sim as sim, os; print(sim.is_active(), 'cuda_driver_sim' in "
        "os.environ.get('LD_LIBRARY_PATH', ''))",
        env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"},
    )
    assert done.stdout == "False False\n"


def test_watching_without_activation_says_so():
    done = run_python("import cuda_driver_sim as sim; sim.live()", env={"PATH": os.environ["PATH"]})
    assert "RuntimeError: the simulated driver is not active" in done.stderr


def test_watching_works_in_a_child_before_its_first_driver_call():
    done = run_python("import cuda_driver_sim as sim; print(sim.live(), sim.calls(), sim.is_active())")
    assert (done.stdout, done.stderr) == ("{} {} True\n", "")


def test_another_library_that_comes_first_in_the_path_is_not_replaced(tmp_path):
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    path = f"{tmp_path}:{os.environ['LD_LIBRARY_PATH']}"
    done = run_python(
        "import cuda_driver_sim as sim; sim.live()", env={**os.environ, "LD_LIBRARY_PATH": path}
    )
    assert "RuntimeError: the simulated driver is not active" in done.stderr


def test_activating_twice_changes_nothing():
    before = os.environ["LD_LIBRARY_PATH"]
    sim.activate()
    assert os.environ["LD_LIBRARY_PATH"] == before
    assert sim.is_active()


def test_too_late_is_an_error(tmp_path):
    source = tmp_path / "other.c"
    source.write_text("int cuInit(unsigned flags) { return 100; }\n")
    other = tmp_path / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(other)]
    subprocess.run(command, check=True)
    done = run_python(
        f"import ctypes; ctypes.CDLL({str(other)!r}); import cuda_driver_sim; cuda_driver_sim.activate()",
        env={k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"},
    )
    assert done.returncode == 1
    assert "RuntimeError: the simulated driver cannot be activated" in done.stderr
    assert "before the first CUDA call" in done.stderr


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_children(method):
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=initialise, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == ("CUDA_SUCCESS", True)
    process.join(60)
    assert process.exitcode == 0


def test_subprocess():
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, timeout=60)
    assert done.stdout == "CUDA_SUCCESS 13000\n"


def test_settings():
    program = (
        "from cuda.bindings import driver as d; d.cuInit(0); "
        "print(d.cuDeviceGetCount()[1], d.cuDeviceTotalMem(0)[1])"
    )
    done = run_python(
        program, env={**os.environ, "CUDA_DRIVER_SIM_DEVICES": "5", "CUDA_DRIVER_SIM_MEMORY": "3GiB"}
    )
    assert done.stdout == f"5 {3 << 30}\n"
    done = run_python(program, env={**os.environ, "CUDA_DRIVER_SIM_MEMORY": str(64 << 20)})
    assert done.stdout == f"2 {64 << 20}\n"
    done = run_python(ASK, env={**os.environ, "CUDA_DRIVER_SIM_DEVICES": "0"})
    assert done.stdout.startswith("CUDA_ERROR_NO_DEVICE")


def test_devices_without_memory_pools():
    program = (
        "from cuda.bindings import driver as d; d.cuInit(0); d.cuDevicePrimaryCtxRetain(0); "
        "A = d.CUdevice_attribute; "
        "names = [a for a in A.__members__.values() if 'POOL' in a.name and 'RDMA' not in a.name]; "
        "print(len(names), [int(d.cuDeviceGetAttribute(a, 0)[1]) for a in names if a < 145]); "
        "print(d.cuDeviceGetMemPool(0)[0].name, d.cuDeviceGetDefaultMemPool(0)[0].name); "
        "p = d.CUmemPoolProps(); p.allocType = 1; p.location.type = 1; "
        "print(d.cuMemPoolCreate(p)[0].name)"
    )
    done = run_python(program, env={**os.environ, "CUDA_DRIVER_SIM_POOLS": "0"})
    without, default, made = done.stdout.splitlines()
    assert without.endswith("[0, 0, 0, 0]")
    assert default == "CUDA_ERROR_NOT_SUPPORTED CUDA_ERROR_NOT_SUPPORTED"
    assert made == "CUDA_ERROR_NOT_SUPPORTED"
    assert "0" not in run_python(program, env=dict(os.environ)).stdout.splitlines()[0].split("[")[1]
    done = run_python(ASK, env={**os.environ, "CUDA_DRIVER_SIM_POOLS": "yes"})
    assert "CUDA_DRIVER_SIM_POOLS is 'yes', and must be 0 or 1" in done.stderr


def test_new_pools_with_the_peers_of_old_ones():
    program = (
        "from cuda.bindings import driver as d; d.cuInit(0)\n"
        "p = d.CUmemPoolProps(); p.allocType = 1; p.location.type = 1\n"
        "there = d.CUmemLocation(); there.type = 1; there.id = 1\n"
        "a = d.CUmemAccessDesc(); a.location = there; a.flags = 3\n"
        "def rights(pool): return int(d.cuMemPoolGetAccess(pool, there)[1])\n"
        "pool = d.cuMemPoolCreate(p)[1]\n"
        "print(rights(pool)); d.cuMemPoolSetAccess(pool, [a], 1); d.cuMemPoolDestroy(pool)\n"
        "print(rights(d.cuMemPoolCreate(p)[1]))"
    )
    assert run_python(program, env=dict(os.environ)).stdout == "0\n0\n"
    done = run_python(program, env={**os.environ, "CUDA_DRIVER_SIM_OLD_RIGHTS": "1"})
    assert done.stdout == "0\n3\n"
