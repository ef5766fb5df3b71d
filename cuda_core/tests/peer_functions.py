# SPDX-License-Identifier: Apache-2.0
"""What the other process of a test does. Each function is called by name; what they keep is in ``kept``."""

import gc
import os
import pickle

from cuda.bindings import driver
from cuda.core import Buffer, Device, Event, VirtualMemoryResource
from cuda.core._memory import _counters
from cuda.core._memory._queue import drain
from shared_pools import SHARED_EVENT, SIZE, descriptors, make
from support import GRANULE, check, fill_granules, read, rights_of_granules, write

kept = {}


def current_context():
    check(driver.cuInit(0))
    return int(check(driver.cuCtxGetCurrent()))


def stream():
    """Return a stream of device 0, which is made current."""
    if "stream" not in kept:
        Device(0).set_current()
        kept["stream"] = Device(0).create_stream()
    return kept["stream"]


def start():
    stream()


def keep(name, thing):
    kept[name] = thing


def drop(name):
    kept.pop(name)
    gc.collect()


def close(name):
    return kept.pop(name).close().name


def close_thing(name):
    kept.pop(name).close()


def seen(name, count):
    start()
    return read(kept[name].handle, count)


def put(name, data):
    start()
    write(kept[name].handle, data)


def says(name):
    buffer = kept[name]
    return buffer.is_mapped, buffer.size, buffer.memory_resource.is_mapped, buffer.ownership.name


def says_of_virtual(name):
    """Return what an imported virtual buffer says, and the rights of this process to each granule of it."""
    buffer = kept[name]
    return (
        buffer.is_mapped,
        buffer.size,
        buffer.mapped_size,
        buffer.ownership.name,
        rights_of_granules(buffer),
    )


def pattern_of_granules(name):
    """Return the first word of each granule."""
    start()
    buffer = kept[name]
    return [read(buffer.handle + at, 4) for at in range(0, buffer.size, GRANULE)]


def keep_and_tell(name, buffer):
    """Keep what the process was started with, and return the first word of each granule."""
    kept[name] = buffer
    return pattern_of_granules(name)


def get_pickled(name):
    return pickle.dumps(kept[name])


def fill_all(name, seed):
    start()
    fill_granules(kept[name], seed=seed)


def import_virtual(name, descriptor, options):
    """Import with rights of this process's own."""
    start()
    kept[name] = Buffer.from_ipc_descriptor(VirtualMemoryResource(0, options), descriptor, stream=stream())


def same_mapping(one, other):
    return kept[one].handle == kept[other].handle


def same_resource(one, other):
    return kept[one].memory_resource is kept[other].memory_resource


def get(name):
    return kept[name]


def read_once(buffer, count):
    """Read what was sent, and close it."""
    with buffer:
        return read(buffer.handle, count)


def count(things):
    return len(things)


def resources_of(name):
    return len({id(buffer.memory_resource) for buffer in kept[name]})


def unpickle(name, data):
    kept[name] = pickle.loads(data)


def import_buffer(name, resource, descriptor):
    kept[name] = Buffer.from_ipc_descriptor(resource, descriptor, stream=stream())


def export(name, kind, data):
    """Make a pool and a buffer with these bytes; return what another process needs for it."""
    resource = make(kind)
    buffer = resource.allocate(SIZE, stream=stream())
    stream().sync()
    write(buffer.handle, data)
    kept[name], kept[name + " pool"] = buffer, resource
    return buffer


def record(name):
    kept[name] = stream().record(options=SHARED_EVENT)
    return kept[name]


def event_state(name):
    event = kept[name]
    return event.is_ipc_enabled, event.is_timing_enabled, event.device, event.context


def event_done(name):
    return kept[name].is_done


def wait_for(name):
    kept[name].sync()
    stream().wait(kept[name])
    stream().sync()
    return kept[name].is_done


def open_event(name, descriptor):
    stream()
    kept[name] = Event.from_ipc_descriptor(descriptor)


def record_again(name):
    try:
        stream().record(kept[name])
    except TypeError as error:
        return str(error)
    raise AssertionError("recorded")


def unpickle_on(current, ordered):
    """Unpickle, with a device current or none; return whether the current context stayed what it was."""
    if current is None:
        check(driver.cuCtxSetCurrent(driver.CUcontext(0)))
    else:
        Device(current).set_current()
    before = current_context()
    things = [pickle.loads(data) for data in ordered]
    after = current_context()
    for thing in things:
        thing.close()
    Device(0).set_current()
    return before == after


def held():
    """Return what this process holds, once everything that was dropped is gone."""
    gc.collect()
    drain(20)
    # A pool remembers a few streams of its last frees.
    live = {name: count for name, count in _counters.live().items() if name != "stream_handles"}
    return live, len(descriptors())


def refusal(name, *arguments):
    """Call another function that must raise; return the exception's class and text."""
    try:
        globals()[name](*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"{name} was accepted")


def end_at_once():
    os._exit(0)


def race_imports(resource, descriptor, seconds, data):
    """Import, check the bytes and close, from four threads, for some time; return how often."""
    import random
    import threading
    import time

    context = check(driver.cuCtxGetCurrent())
    until = time.monotonic() + seconds
    counts, failures = [], []

    def work(seed):
        random_ = random.Random(seed)
        count = 0
        try:
            check(driver.cuCtxSetCurrent(context))
            own = Device(0).create_stream()
            while time.monotonic() < until:
                buffer = Buffer.from_ipc_descriptor(resource, descriptor, stream=own)
                if random_.random() < 0.3:
                    time.sleep(random_.random() / 1000)
                assert read(buffer.handle, len(data)) == data
                if random_.random() < 0.5:
                    buffer.close()
                del buffer
                count += 1
            own.close()
        except BaseException as error:
            failures.append(repr(error))
        counts.append(count)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert not failures, failures
    return sum(counts)
