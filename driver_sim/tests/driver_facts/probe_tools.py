"""What the further probes share: scenarios that run in processes of their own, and small checked calls."""
import ctypes
import json
import multiprocessing as mp
import sys
import threading

from cuda.bindings import driver as d

from probe import Log

FD = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MODE = {name: getattr(d.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name}")
        for name in ("GLOBAL", "THREAD_LOCAL", "RELAXED")}
EVERYTHING = d.cuuint64_t(2**64 - 1)
THRESHOLD = d.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
LEGACY, PER_THREAD = 1, 2
MIB = 1 << 20

libc = ctypes.CDLL(None)
HOST_MEMORY = ctypes.create_string_buffer(64)
HOST_BYTES = ctypes.addressof(HOST_MEMORY)
driver = ctypes.CDLL("libcuda.so.1")
USLEEP = ctypes.cast(libc.usleep, ctypes.c_void_p)  # a host function that keeps a stream busy
scenarios = {}


def scenario(fn):
    scenarios[fn.__name__] = fn
    return fn


def ctx():
    return d.cuDevicePrimaryCtxRetain(0)[1]


def made(result):
    """The value of a call that is not in question."""
    assert result[0] == 0, result
    return result[1] if len(result) == 2 else result[1:]


def place(kind="DEVICE", number=0):
    location = d.CUmemLocation()
    location.type = getattr(d.CUmemLocationType, f"CU_MEM_LOCATION_TYPE_{kind}")
    location.id = number
    return location


def pointers(addresses):
    return [d.CUdeviceptr(int(address)) for address in addresses]


def bytes_at(log, label, address, count=8):
    out = bytearray(count)
    log(label, d.cuMemcpyDtoH(out, address, count), out.hex())


def rights(log, label, address):
    result = d.cuMemGetAccess(place(), address)
    log(label, result, *(int(value) for value in result[1:] if result[0] == 0))


def host_function(stream, microseconds):
    """Submit a sleep. Not through the bindings, whose own host function wants the interpreter's lock."""
    result = driver.cuLaunchHostFunc(ctypes.c_void_p(int(stream)), USLEEP, ctypes.c_void_p(microseconds))
    return (d.CUresult(result),)


def busy(stream, milliseconds=60):
    host_function(stream, milliseconds * 1000)


def on_thread(fn, *args):
    def run():
        d.cuCtxSetCurrent(ctx())
        fn(*args)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def in_processes(log, calls):
    """Run each (label, function, arguments) in a process of its own, all at once, and append what they logged."""
    context = mp.get_context("spawn")
    running = []
    for label, fn, args in calls:
        here, there = context.Pipe()
        process = context.Process(target=child, args=(there, fn, args))
        process.start()
        there.close()
        running.append((label, process, here))
    for label, process, here in running:
        log.note(label)
        try:
            while True:
                log.pipe.send(here.recv())
        except EOFError:
            pass
        process.join(60)
        log.note("  exit", "in order" if process.exitcode == 0 else "died")


class Told(Log):
    """A log whose steps are sent as they come, so that they outlive the process."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __call__(self, label, result, *values):
        self.pipe.send([label, result[0].name, *[str(v) for v in values]])
        return result[1] if len(result) == 2 else result[1:]

    def note(self, label, *values):
        self.pipe.send([label, *[str(v) for v in values]])


def child(pipe, fn, args):
    d.cuInit(0)
    d.cuCtxSetCurrent(ctx())
    fn(Told(pipe), *args)
    pipe.close()


def ended(stream):
    """How the capture ends: its status before, and the answer to the end."""
    status = d.cuStreamIsCapturing(stream)
    end = d.cuStreamEndCapture(stream)
    if end[0] == 0 and end[1]:
        d.cuGraphDestroy(end[1])
    return status[1].name.rpartition("_")[2] if status[0] == 0 else status[0].name, end[0].name


def alone(fn):
    """The steps of a scenario in a process of its own, so that none suffers from another."""
    here, there = mp.get_context("spawn").Pipe()
    process = mp.get_context("spawn").Process(target=child, args=(there, fn, ()))
    process.start()
    there.close()
    steps = []
    try:
        while True:
            steps.append(here.recv())
    except EOFError:
        pass
    process.join(60)
    if process.exitcode != 0:
        steps.append(["the process ended early"])
    return steps


def main():
    only = [a for a in sys.argv[1:] if a in scenarios]
    out = {name: alone(fn) for name, fn in scenarios.items() if not only or name in only}
    if "--check" in sys.argv:
        want = json.load(open(sys.argv[sys.argv.index("--check") + 1]))
        bad = total = 0
        for name in out:
            for i, step in enumerate(want.get(name, [])):
                total += 1
                got = out[name][i] if i < len(out[name]) else None
                if got != step:
                    bad += 1
                    print(f"{name}[{i}]: reference {step} here {got}")
        print(f"{total - bad} of {total} steps agree")
        sys.exit(bad != 0)
    json.dump(out, sys.stdout, indent=0)
