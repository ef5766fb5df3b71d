# SPDX-License-Identifier: Apache-2.0
"""The switch between the simulated driver and a GPU, and what must be true when a test ends.

``--driver=sim`` loads the simulated driver, ``--driver=gpu`` the installed one, ``--driver=auto`` (the default) the
installed one when it has a device. The choice is made before anything imports ``cuda.bindings``, because a process
keeps the first ``libcuda.so.1`` that it loads.

The installed driver is watched: the simulated driver's library stands in front of it, counts its calls and live
objects, and lets calls fail. ``--unwatched`` leaves that out.
"""

import argparse
import contextlib
import functools
import gc
import os
import re
import subprocess
import sys
import time
import zlib
from pathlib import Path

import hypothesis
import pytest

# The same examples in every run, so that a failure says something about the change at hand. Exploring further is
# asked for with --hypothesis-profile=explore.
hypothesis.settings.register_profile("stable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)

# The tests are imported by path (importmode=importlib), so their helpers have to be found through sys.path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

_driver_name = pytest.StashKey[str]()
_unwatched = pytest.StashKey[str]()  # why the driver is not watched; empty when it is
_deselected = pytest.StashKey[int]()
_free_gpus = pytest.StashKey[list]()
_kept_by_the_driver = pytest.StashKey[int]()

# Of device memory, what a real driver may take for itself in the course of all tests. It takes blocks for new streams,
# threads and processes when it likes. What is missing behind a test although nothing that the driver was asked for is
# live counts towards this: a fault that loses memory in such a way would lose far more over 1,900 tests.
_MOST_KEPT = 256 << 20

# Looks in a process of its own: loading the installed driver here would settle the choice.
_COUNT_DEVICES = """
import ctypes, sys
try:
    library = ctypes.CDLL("libcuda.so.1")
except OSError:
    sys.exit(0)
if "cuda_driver_sim" in open("/proc/self/maps").read():
    sys.exit(0)
count = ctypes.c_int(0)
sys.exit(count.value if library.cuInit(0) == 0 and library.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0)
"""


def _number_of_gpus():
    found = subprocess.run([sys.executable, "-c", _COUNT_DEVICES], timeout=120).returncode
    return max(found, 0)  # negative: the driver crashed


def _part(text):
    """Return a part as two numbers."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    part, parts = (int(number) for number in found.groups()) if found else (0, 0)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"a part is K/N with K from 1 to N, got {text!r}")
    return part, parts


def pytest_addoption(parser):
    parser.addoption(
        "--driver",
        choices=("auto", "sim", "gpu"),
        default="auto",
        help="the driver that the tests run on: the simulated one, or the installed one with a GPU",
    )
    parser.addoption(
        "--brief",
        action="store_true",
        help="leave out the tests that go through all failures and interleavings",
    )
    parser.addoption(
        "--part",
        metavar="K/N",
        type=_part,
        help="run the tests of every N-th file or so, from the K-th on; the others are not even read",
    )
    parser.addoption(
        "--unwatched",
        action="store_true",
        help="on a GPU, let nothing stand in front of the driver; tests that need it are left out",
    )
    parser.addoption(
        "--shared-gpu",
        action="store_true",
        help="let more processes than there are GPUs share the tests; how much memory is free is not looked at",
    )


# What goes through all failures and interleavings. It says the same about the package on every Python.
_EXHAUSTIVE = re.compile(
    r"test_(\w*machine\w*|races|ownership_model|wrong_resources|conformance|\w*failures)\.py$"
)


def _activate(choice, unwatched):
    """Load the driver; return why it is not watched, or nothing."""
    if choice == "gpu" and unwatched:
        return "as asked for"
    try:
        import cuda_driver_sim

        cuda_driver_sim.activate(real=choice == "gpu")
    except (ImportError, RuntimeError) as error:
        if choice == "sim":
            raise
        return str(error)
    return ""


def _chosen_driver(config):
    choice = config.getoption("--driver")
    if choice == "auto":
        choice = "gpu" if _number_of_gpus() else "sim"
    return choice


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """Share a GPU with nobody: the tests look at how much of its memory is free. Two GPUs take two processes."""
    if _chosen_driver(config) == "sim":
        return None
    gpus = _number_of_gpus()
    return gpus if gpus > 1 else 0


def _names_of_the_gpus():
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(_number_of_gpus())]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Give a process that shares the tests with others a GPU of its own."""
    free = node.config.stash.get(_free_gpus, None)
    if free is None:
        return
    if node.config.getoption("--shared-gpu"):
        return
    if not free:
        raise pytest.UsageError("there are more processes than GPUs: each needs its own, or --shared-gpu")
    node.workerinput["gpu"] = free.pop(0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    if "gpu" in node.workerinput:
        node.config.stash[_free_gpus].append(node.workerinput["gpu"])


def pytest_configure(config):
    for line in (
        "sim_only: needs held work, the limits of the simulated driver, or the checkout; left out on a GPU",
        "watched: injects failures, or looks at calls or live objects; left out on a GPU that is not watched",
        "two_devices: needs a second device",
        "provokes_refusals: makes the driver refuse calls on purpose",
        "provokes_overlaps: uses, from several threads at once, what a real driver does not keep apart",
        "alone: says something about times, or free memory, of a GPU that nobody else uses; left out with --shared-gpu",
    ):
        config.addinivalue_line("markers", line)
    if not config.getoption("--hypothesis-profile", None):
        hypothesis.settings.load_profile("stable")
    choice = _chosen_driver(config)
    if choice == "gpu" and "gpu" in getattr(config, "workerinput", ()):
        os.environ["CUDA_VISIBLE_DEVICES"] = config.workerinput["gpu"]
    elif choice == "gpu":
        config.stash[_free_gpus] = (
            _names_of_the_gpus()
        )  # before a driver is loaded that children would inherit
    config.stash[_unwatched] = _activate(choice, config.getoption("--unwatched"))
    config.stash[_driver_name] = choice
    config.stash[_deselected] = 0
    config.stash[_kept_by_the_driver] = 0


def _name_of_the_library():
    with open("/proc/self/maps") as maps:
        paths = {line.split()[-1] for line in maps if "libcuda.so" in line}
    return ", ".join(sorted(paths)) or "not loaded yet"


def pytest_report_header(config):
    if config.stash[_driver_name] == "sim":
        return f"driver: simulated ({_name_of_the_library()})"
    if config.stash[_unwatched]:
        return f"driver: the installed one, on a GPU, not watched: {config.stash[_unwatched]}"
    import cuda_driver_sim

    return f"driver: the installed one, on a GPU, watched ({cuda_driver_sim.real_path()})"


def pytest_ignore_collect(collection_path, config):
    if not config.getoption("--part") or not collection_path.name.startswith("test_"):
        return None
    part, parts = config.getoption("--part")
    return zlib.crc32(collection_path.name.encode()) % parts != part - 1 or None


@functools.cache
def _looks_at_free_memory(path):
    """Whether a file of tests, or a program that it runs in a child, asks how much memory is free."""
    return "free_memory" in path.read_text()


def _needs_a_gpu_for_itself(item):
    return item.get_closest_marker("alone") or _looks_at_free_memory(item.path)


def pytest_collection_modifyitems(config, items):
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:  # two processes that share the tests would not agree on their names
        raise pytest.UsageError(f"the name of a test holds an address: {unstable[0]}")
    if config.getoption("--brief"):
        _leave_out(config, items, lambda item: _EXHAUSTIVE.search(item.nodeid.split("::")[0]))
    if config.stash[_driver_name] == "sim":
        return
    from support import device_count

    def cannot_run(item):
        return (
            item.get_closest_marker("sim_only")
            or (item.get_closest_marker("watched") and config.stash[_unwatched])
            or (item.get_closest_marker("two_devices") and device_count() < 2)
            or (config.getoption("--shared-gpu") and _needs_a_gpu_for_itself(item))
        )

    config.stash[_deselected] = _leave_out(config, items, cannot_run)


def _leave_out(config, items, which):
    left_out = [item for item in items if which(item)]
    if left_out:
        items[:] = [item for item in items if not which(item)]
        config.hook.pytest_deselected(items=left_out)
    return len(left_out)


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[_deselected]:
        terminalreporter.write_line(
            f"{config.stash[_deselected]} tests need the simulated driver (or more devices, or one to themselves)"
            " and were left out"
        )
    if config.stash[_kept_by_the_driver]:
        terminalreporter.write_line(
            f"the driver has kept {config.stash[_kept_by_the_driver]:,} bytes of device memory for itself"
        )


@pytest.fixture(scope="session")
def driver_name(pytestconfig):
    """``"sim"`` or ``"gpu"``."""
    return pytestconfig.stash[_driver_name]


@pytest.fixture(scope="session", autouse=True)
def devices():
    """The devices, the first two with their contexts made, the first one current."""
    from buffer_kinds import make_raw_pools
    from cuda.core import Device
    from support import warm_up

    found = Device.get_all_devices()
    for device in reversed(found[:2]):
        device.set_current()
        # The first set on a GPU loads a module into device memory, which must not look like a leak of some test.
        warm_up()
    make_raw_pools()
    return found


@pytest.fixture
def device(devices):
    """Device 0, current."""
    devices[0].set_current()
    return devices[0]


class _RealDriver:
    """The simulated driver's module in front of a real driver, whose work runs when the GPU likes."""

    hold = staticmethod(contextlib.nullcontext)

    def __getattr__(self, name):
        import cuda_driver_sim

        return getattr(cuda_driver_sim, name)


class DriverWatch:
    """What the driver was asked to do, and has.

    On a GPU that is not watched nothing is counted: ``sim`` is None, ``calls_of`` then runs its function and returns
    an empty dictionary, and ``no_call`` watches nothing. Tests say what else must be true beside.
    """

    def __init__(self, sim):
        self.sim = sim

    def calls(self):
        return dict(self.sim.calls()) if self.sim else {}

    def calls_of(self, function):
        before = self.calls()
        function()
        after = self.calls()
        return {name: n - before.get(name, 0) for name, n in after.items() if n != before.get(name, 0)}

    def no_call(self):
        return _NoCall(self)

    def refused(self):
        return [(entry.name, entry.result) for entry in self.sim.refused()] if self.sim else []

    def overlaps(self):
        return [(entry.name, entry.beside) for entry in self.sim.overlaps()] if self.sim else []

    def live(self):
        return dict(self.sim.live()) if self.sim else {}

    def fail(self, name, nth=1, result="CUDA_ERROR_OUT_OF_MEMORY", sticky=False, effect=False):
        return self.sim.fail(name, nth=nth, result=result, sticky=sticky, effect=effect)


class _NoCall:
    def __init__(self, watch):
        self.watch = watch

    def __enter__(self):
        self.before = self.watch.calls()

    def __exit__(self, kind, error, traceback):
        if error is None:
            assert self.watch.calls() == self.before, "the driver was called"


@pytest.fixture
def driver_watch(driver_name, pytestconfig):
    if pytestconfig.stash[_unwatched]:
        return DriverWatch(None)
    if driver_name == "gpu":
        return DriverWatch(_RealDriver())
    import cuda_driver_sim

    return DriverWatch(cuda_driver_sim)


_failed = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def _forget_the_last_failure():
    # pytest leaves the last exception here for debuggers; its frames hold the buffers of the test that failed.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)


_THAWED_EVERY = 200  # tests
_collections = 0


def _collect():
    """Collect what the test has left, and keep what survives out of later collections.

    Two collections of everything for each test were a third of the time of all tests. What survives and becomes a cycle
    of garbage later is found now and then; no buffer is among it, since a test that leaves one fails.
    """
    global _collections
    _collections += 1
    if _collections % _THAWED_EVERY == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def _live_now(watch):
    from cuda.core._memory import _counters

    return {"package": dict(_counters.live()), "driver": watch.live()}


def _is_question_beside_a_foreign_capture(pair):
    """Whether it is the one call that captures of others cannot be kept from; a real driver was seen to bear it."""
    boundaries = ("cuStreamBeginCapture", "cuStreamEndCapture")
    return "cuStreamIsCapturing" in pair and (pair[0] in boundaries or pair[1] in boundaries)


@pytest.fixture(autouse=True)
def nothing_left(request, devices, driver_watch):
    """Every test ends with nothing live that was not live before it, and with no call refused by surprise.

    Nor did two threads call the driver at once for one capture or graph, where a real driver may crash.
    """
    from buffer_kinds import raw_pools
    from cuda.core._capture_lock import captures_begun
    from cuda.core._memory._queue import drain
    from support import drop_contexts, free_memory, trim_pools

    alone = not request.config.getoption("--shared-gpu")
    _forget_the_last_failure()
    drop_contexts()  # what an earlier test has left below would be found by one that wants none
    devices[0].set_current()
    _collect()
    drain(20)
    trim_pools(raw_pools.values())
    if driver_watch.sim:
        driver_watch.sim.reset()
    live = _live_now(driver_watch)
    begun = captures_begun()
    free = free_memory()
    yield
    if request.node.stash.get(_failed, False):
        return  # its buffers live on in the traceback, and say nothing new
    devices[0].set_current()
    if request.node.funcargs is not None:  # it is where the run is given up
        request.node.funcargs.clear()  # pytest keeps what the fixtures made until the test is taken down
    _collect()
    drain(20)  # what a collection frees may be on its way
    refused, overlaps = driver_watch.refused(), driver_watch.overlaps()
    if driver_watch.calls().get("cuStreamBeginCapture", 0) > captures_begun() - begun:
        # The test has begun one itself, which nothing here can keep waiting while the reaper asks.
        overlaps = [pair for pair in overlaps if not _is_question_beside_a_foreign_capture(pair)]
    left = _live_now(driver_watch)
    for _ in range(100):
        if left == live:
            break
        time.sleep(0.01)  # loans of a graph end on a thread: the memory is back before all is counted
        left = _live_now(driver_watch)
    assert left == live, "live after the test, and before it"
    for _ in range(20):
        trim_pools(raw_pools.values())
        if free_memory() >= free or not alone:
            break
        time.sleep(0.05)  # another process on the same GPU may come and go
    if alone:
        missing = max(free - free_memory(), 0)
        if driver_watch.sim and request.config.stash[_driver_name] == "gpu":
            request.config.stash[_kept_by_the_driver] += missing
            missing = max(request.config.stash[_kept_by_the_driver] - _MOST_KEPT, 0)
        assert missing == 0, "device memory was not given back"
    if not request.node.get_closest_marker("provokes_refusals"):
        assert refused == [], "the driver refused calls that the test did not provoke"
    if not request.node.get_closest_marker("provokes_overlaps"):
        assert overlaps == [], "calls of two threads were made at once that a real driver does not keep apart"


@pytest.fixture
def quiet(capfd):
    """Nothing may be written to standard output or standard error while the test runs."""
    yield
    written = capfd.readouterr()
    assert written.out == ""
    assert written.err == ""


@pytest.fixture
def stream(device):
    stream = device.create_stream()
    yield stream
    stream.close()


@pytest.fixture
def resource(device):
    """A virtual memory resource on device 0 with the default options."""
    from cuda.core import VirtualMemoryResource

    return VirtualMemoryResource(device)


@pytest.fixture
def threshold(device):
    """Sets and reads the release threshold of device 0's current pool through the bindings; puts it back."""
    from cuda.bindings import driver
    from support import check

    attribute = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    pool = check(driver.cuDeviceGetMemPool(0))

    class Threshold:
        def get(self):
            return int(check(driver.cuMemPoolGetAttribute(pool, attribute)))

        def set(self, value):
            check(driver.cuMemPoolSetAttribute(pool, attribute, driver.cuuint64_t(value)))

    now = Threshold()
    before = now.get()
    yield now
    now.set(before)
    check(driver.cuMemPoolTrimTo(pool, 0))
