# SPDX-License-Identifier: Apache-2.0
"""What the tests see of the driver: they look at memory, addresses and rights through ``cuda.bindings`` alone.

Nothing here goes through the package under test, so that a fault of the package cannot hide itself.
"""

import contextlib
import ctypes
import gc
import os
import re
import struct
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

from cuda.bindings import driver

GRANULE = 2 << 20
SUCCESS = driver.CUresult.CUDA_SUCCESS
_SHARES_MANAGED_MEMORY = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
_MANY_STREAMS = 110  # more than any test uses at the same time
JOIN_SECONDS = 60  # a thread that takes longer hangs


def check(result):
    """Return what a call of the bindings returned beside its result; raise when the result is an error."""
    error, *values = result
    if error != SUCCESS:
        raise RuntimeError(f"the driver answered {error.name}")
    return values[0] if len(values) == 1 else tuple(values)


def name_of(value):
    """Name a test's parameter the same way in each process, whatever the address of the object is."""
    return re.sub(" at 0x[0-9a-f]+", "", str(value))


def device_count():
    check(driver.cuInit(0))
    return int(check(driver.cuDeviceGetCount()))


def warm_up():
    """Let the driver take what it takes for itself on first use in the current context.

    One small allocation stays for good: the driver keeps a larger block behind it, and would take and return that
    block with every small allocation of a test.
    """
    small = check(driver.cuMemAlloc(512))
    for kind in (0, 1):
        _use_streams([check(driver.cuStreamCreate(kind)) for _ in range(_MANY_STREAMS)], small)
    find_home()
    address = check(driver.cuMemAlloc(4096))
    check(driver.cuMemsetD8(address, 1, 4096))
    check(driver.cuMemsetD32(address, 1, 1024))
    check(driver.cuMemcpyHtoD(address, bytes(4096), 4096))
    check(driver.cuMemcpyDtoH(bytearray(4096), address, 4096))
    check(driver.cuMemFree(address))
    _use_managed_memory()
    check(driver.cuCtxSynchronize())


def _use_streams(streams, memory):
    """What a driver keeps for streams grows with the most that ever had work at the same time."""
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc  # past the bindings, which would want the GIL
    for stream in streams:
        assert launch(ctypes.c_void_p(int(stream)), sleep, ctypes.c_void_p(100)) == 0
        check(driver.cuMemsetD8Async(memory, 0, 512, stream))
        event = check(driver.cuEventCreate(0))
        check(driver.cuEventRecord(event, stream))
        check(driver.cuEventDestroy(event))
    for stream in streams:
        check(driver.cuStreamSynchronize(stream))
        check(driver.cuStreamDestroy(stream))


def trim_pools(own=()):
    """Let the pools that belong to the whole process, and these, give back what they keep of memory that was freed."""
    check(driver.cuCtxSynchronize())
    for pool in own:
        check(driver.cuMemPoolTrimTo(pool, 0))
    kinds, places = driver.CUmemAllocationType, driver.CUmemLocationType
    for kind, place in (
        (kinds.CU_MEM_ALLOCATION_TYPE_PINNED, places.CU_MEM_LOCATION_TYPE_DEVICE),
        (kinds.CU_MEM_ALLOCATION_TYPE_MANAGED, places.CU_MEM_LOCATION_TYPE_DEVICE),
        (kinds.CU_MEM_ALLOCATION_TYPE_MANAGED, places.CU_MEM_LOCATION_TYPE_NONE),
        (kinds.CU_MEM_ALLOCATION_TYPE_PINNED, places.CU_MEM_LOCATION_TYPE_HOST),
    ):
        location = driver.CUmemLocation()
        location.type = place
        for location.id in range(device_count() if place == places.CU_MEM_LOCATION_TYPE_DEVICE else 1):
            error, pool = driver.cuMemGetMemPool(location, kind)
            if error == SUCCESS:
                check(driver.cuMemPoolTrimTo(pool, 0))


def _use_managed_memory():
    """The first page that moves makes a driver take memory of every device that has a context."""
    if not check(driver.cuDeviceGetAttribute(_SHARES_MANAGED_MEMORY, check(driver.cuCtxGetDevice()))):
        return
    address = check(driver.cuMemAllocManaged(4096, 1))
    check(driver.cuMemsetD8(address, 1, 4096))
    check(driver.cuCtxSynchronize())
    ctypes.memset(int(address), 2, 4096)
    check(driver.cuMemsetD8(address, 1, 4096))
    check(driver.cuCtxSynchronize())
    check(driver.cuMemFree(address))


def drop_contexts():
    """Leave this thread without any context; setting none current takes away one of several only."""
    while driver.cuCtxPopCurrent()[0] == driver.CUresult.CUDA_SUCCESS:
        pass


def calls_in_order(watch, function):
    """Return what the function returned, and (name, n) for each of its driver calls in order."""
    with watch.sim.logged() as log:
        result = function()
    counts, calls = {}, []
    for call in log.calls:
        counts[call.name] = counts.get(call.name, 0) + 1
        calls.append((call.name, counts[call.name]))
    return result, [(name, n) for name, n in calls if not name.startswith("cuGetError")]


def free_memory():
    """Bytes of device memory that the driver can still give."""
    return int(check(driver.cuMemGetInfo())[0])


# --- addresses ---------------------------------------------------------------------------------------------------


def reserve(size, address=0):
    """Reserve addresses, at `address` if the driver grants it, and return where they are."""
    return int(check(driver.cuMemAddressReserve(size, 0, address, 0)))


def free_addresses(address, size):
    check(driver.cuMemAddressFree(address, size))


def take(address, size):
    """Reserve exactly this range; None when the driver puts the reservation elsewhere, as it does with a taken hint."""
    granted = reserve(size, address)
    if granted == address:
        return granted
    free_addresses(granted, size)
    return None


def address_free(address, size):
    """Tell whether nothing is reserved in this range: it can be reserved in one piece."""
    if take(address, size) is not None:
        free_addresses(address, size)
        return True
    # A real driver does not honour hints everywhere. There, only mapping something tells.
    return not simulated() and not any(
        is_reserved(place) for place in range(address, address + size, GRANULE)
    )


def simulated():
    sim = sys.modules.get("cuda_driver_sim")
    return sim is not None and sim.is_active() and sim.real_path() is None


def watching_driver():
    """Return the module that counts the calls of the driver, or None; also in a child, which has not loaded it.

    To be asked when the driver was used: before, none is loaded that could be watched.
    """
    try:
        import cuda_driver_sim
    except ImportError:
        return None
    return cuda_driver_sim if cuda_driver_sim.is_active() else None


def _past_the_watcher():
    """The real driver itself: to ask it what it may well refuse, without that being counted as refused."""
    sim = sys.modules.get("cuda_driver_sim")
    return ctypes.CDLL(sim.real_path() if sim is not None and sim.is_active() else "libcuda.so.1")


def is_reserved(address):
    """Tell whether somebody has reserved this granule, by what a real driver says to a mapping there.

    It refuses one where nothing is reserved, and where something is mapped; the latter has a handle.
    """
    real, place, size = _past_the_watcher(), ctypes.c_ulonglong(address), ctypes.c_size_t(GRANULE)
    chunk = ctypes.c_ulonglong()
    if real.cuMemRetainAllocationHandle(ctypes.byref(chunk), place) == 0:
        assert real.cuMemRelease(chunk) == 0
        return True
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    no_flags = ctypes.c_ulonglong(0)
    wanted = ctypes.c_void_p(properties.getPtr())
    assert real.cuMemCreate(ctypes.byref(chunk), size, wanted, no_flags) == 0
    mapped = real.cuMemMap(place, size, ctypes.c_size_t(0), chunk, no_flags) == 0
    if mapped:
        assert real.cuMemUnmap(place, size) == 0
    assert real.cuMemRelease(chunk) == 0
    return mapped


def still_allocated(address):
    """Tell whether the driver knows memory at this address, of any kind: it has not been freed or unmapped."""
    attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    return int(check(driver.cuPointerGetAttributes(1, [attribute], address))[0]) != 0


_SLOT = 32 << 20


def given_back(address, seconds=10):
    """Tell whether the memory at this address has been given back, or is within moments.

    What a collection or the last loan ends may go back by another thread.
    """
    end = time.monotonic() + seconds
    while still_allocated(address):
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


_HOME_SIZE = 64 << 30
_home = []


def _granted(address, granules):
    """Tell whether the driver honours this hint, and give the addresses back."""
    granted = take(address, granules * GRANULE) is not None
    if granted:
        free_addresses(address, granules * GRANULE)
    return granted


def _stretches(granules):
    """Addresses where so many granules may be free: where the driver puts small and large reservations, and where it
    put one when the process began.
    """
    for count in (granules, 1, 8, 64):
        address = reserve(count * GRANULE)
        free_addresses(address, count * GRANULE)
        # One granule further first, so that one is free before the stretch.
        yield from (address + GRANULE, address, -(-address // _SLOT) * _SLOT)
    yield from range(
        -(-_home[0] // _SLOT) * _SLOT, _home[0] + _HOME_SIZE, (granules * GRANULE // _SLOT + 1) * _SLOT
    )


def open_stretch(granules):
    """Return the address of a stretch that is free now and where the driver honours hints of every size.

    On the simulated driver one granule before it is free, too.
    """
    counts = {granules, max(granules // 2, 1), *(2**n for n in range(8) if 2**n < granules)}
    for _ in range(3):
        for address in _stretches(granules + 1):
            if all(_granted(address, count) for count in counts):
                return address
        # What tests gave back since has made room in slots that the driver had begun.
        _fill_begun_slots()
    raise RuntimeError("no stretch of addresses in which the driver honours hints")


def find_home():
    """Remember where the driver reserves addresses at the start of the process, and fill what it has begun to use.

    An H200 puts small reservations into slots of 32 MiB. While a slot that it has begun has room, it ignores the hint
    of a small reservation to any other. When all are full it honours hints to the start of a new one.
    """
    if not _home:
        _home.append(reserve(_HOME_SIZE))
        free_addresses(_home[0], _HOME_SIZE)
        _fill_begun_slots()


def _fill_begun_slots():
    """Reserve granules until the driver begins a new slot. They are kept for good, but the last."""
    if simulated():
        return
    real, size, zero = _past_the_watcher(), ctypes.c_size_t(GRANULE), ctypes.c_ulonglong(0)
    address = ctypes.c_ulonglong()
    for _ in range(4096):
        assert real.cuMemAddressReserve(ctypes.byref(address), size, ctypes.c_size_t(0), zero, zero) == 0
        if address.value % _SLOT == 0 and _home[0] <= address.value < _home[0] + _HOME_SIZE:
            assert real.cuMemAddressFree(address, size) == 0
            return


@contextlib.contextmanager
def blocked(buffer):
    """Occupy the addresses behind all that `buffer` may grow into, so that a grow has to move."""
    behind = buffer.handle + buffer.capacity
    # A real driver may grant a size there and not another. None of them: nobody gets it, which blocks as well.
    count = next((n for n in (1, 2, 4, 8, 16) if take(behind, n * GRANULE) is not None), 0)
    try:
        yield
    finally:
        if count:
            free_addresses(behind, count * GRANULE)


@contextlib.contextmanager
def foreign_reservations(address, size):
    """Occupy one granule right before and right behind this range."""
    taken = [place for place in (take(address - GRANULE, GRANULE), take(address + size, GRANULE)) if place]
    try:
        yield
    finally:
        for place in taken:
            free_addresses(place, GRANULE)


def place(device, size, stretch, **options):
    """Allocate a virtual buffer that has `stretch` free granules from its address on; also return its resource."""
    from cuda.core import VirtualMemoryResource, VirtualMemoryResourceOptions

    base = open_stretch(stretch + 1)
    resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(addr_hint=base, **options))
    buffer = resource.allocate(size)
    assert buffer.handle == base, "the driver did not honour the hint"
    return buffer, resource


# --- bytes -------------------------------------------------------------------------------------------------------


def write(address, data):
    held = bytearray(data)
    check(driver.cuMemcpy(address, _address_of(held), len(held)))
    let_it_arrive()


def let_it_arrive():
    """Wait for what the legacy stream does: a GPU sets memory, and takes the end of a copy, behind the call's return.

    The streams of the tests do not wait for the legacy one, so that they could read, free or move the memory before.
    """
    check(driver.cuStreamSynchronize(0))


def read(address, size):
    data = bytearray(size)
    check(driver.cuMemcpy(_address_of(data), address, size))
    return bytes(data)


def _address_of(data):
    # An address, not the object: the calls that name a side refuse memory of host pools as the device's.
    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)) if data else 0


def fill(address, size, seed):
    """Fill `size` bytes (a multiple of 4) with a 32-bit pattern made of `seed`."""
    check(driver.cuMemsetD32(address, _word(seed), size // 4))
    let_it_arrive()


def holds(address, size, seed):
    """Tell whether every byte is as `fill` with the same seed left it."""
    return read(address, size) == struct.pack("<I", _word(seed)) * (size // 4)


def _word(seed):
    return (0x9E3779B1 * (seed + 1)) & 0xFFFFFFFF


def fill_granules(buffer, first=0, seed=0):
    """Give each granule of the buffer from granule `first` on a pattern of its own."""
    for index in range(first, buffer.size // GRANULE):
        fill(buffer.handle + index * GRANULE, GRANULE, seed + index)


def granules_hold(buffer, granules, seed=0):
    """Tell whether the first `granules` granules are as `fill_granules` left them."""
    return all(holds(buffer.handle + index * GRANULE, GRANULE, seed + index) for index in range(granules))


def rights(address, device=0):
    """Return the access that `device` has: 0 none, 1 read, 3 read and write."""
    location = driver.CUmemLocation()
    location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    location.id = device
    return int(check(driver.cuMemGetAccess(location, address)))


def rights_of_granules(buffer, device=0):
    return [rights(buffer.handle + offset, device) for offset in range(0, buffer.size, GRANULE)]


# --- time and threads --------------------------------------------------------------------------------------------


def race(*functions):
    """Run the functions at the same time, each in a thread; return what each returned or raised, in order.

    No context is current in the threads; `in_context` is for functions that need one.
    """
    barrier = threading.Barrier(len(functions))
    outcomes = [None] * len(functions)

    def run(index, function):
        barrier.wait()
        try:
            outcomes[index] = function()
        except Exception as error:
            outcomes[index] = error

    threads = [
        threading.Thread(target=run, args=(index, function), daemon=True)
        for index, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(JOIN_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return outcomes


def in_context(function):
    """Return the function with the caller's current context made current before it runs."""
    context = check(driver.cuCtxGetCurrent())

    def with_context():
        check(driver.cuCtxSetCurrent(context))
        return function()

    return with_context


def attempt(function, kind=Exception):
    """Call the function; return what it returned and None, or None and the error of `kind` that it raised."""
    try:
        return function(), None
    except kind as error:
        return None, error


# --- warnings and child processes --------------------------------------------------------------------------------


@contextlib.contextmanager
def warnings_seen():
    """Collect every warning of the block, those of its garbage included, in a list."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen
        gc.collect()


def child_environment(environment=None):
    """Return the environment in which a child finds this module as `support`."""
    env = dict(os.environ if environment is None else environment)
    here = str(Path(__file__).resolve().parent)
    env["PYTHONPATH"] = os.pathsep.join(part for part in (here, env.get("PYTHONPATH")) if part)
    env["PYTHONUNBUFFERED"] = "1"  # children of a fork that end by os._exit flush nothing
    return env


def run_child(code, *arguments, options=(), environment=None, timeout=120):
    """Run Python code in a process of its own on the same driver; the code finds this module as `support`."""
    return subprocess.run(
        [sys.executable, *options, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=child_environment(environment),
    )


def watched_end(program, *options):
    """Run a program in a file on the simulated driver; return its exit code, and what was said of what it has left."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "cuda_driver_sim", "--strict", *options, program],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        check=False,
    )
    return done.returncode, done.stderr


def child_output(code, *arguments, **keywords):
    """Run a child that must end well and quietly; return what it printed."""
    child = run_child(code, *arguments, **keywords)
    assert (child.returncode, child.stderr) == (0, ""), (
        f"exit {child.returncode}\n{child.stdout}\n{child.stderr}"
    )
    return child.stdout
