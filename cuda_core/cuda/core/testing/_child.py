# SPDX-License-Identifier: Apache-2.0
"""What runs in other processes: a program that ends with buffers alive, and the peer of an export.

python -m cuda.core.testing._child FILE MODULE CLASS
"""

import faulthandler
import functools
import gc
import importlib.util
import sys

from cuda.core import Device

__all__ = ["collect_in_the_middle", "end_with_everything_alive", "peer"]


def _load(path, name, qualified):
    """Return a test class by the file that defines it."""
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return functools.reduce(getattr, qualified.split("."), module)


_alive = []  # until the end


def end_with_everything_alive(path, name, qualified):
    """Leave open, dropped, lent and cyclic buffers of a resource behind, here and in its module's hands."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    tests = _load(path, name, qualified)()
    resource = tests.make_resource()
    sizes = tests.sizes
    _alive.extend(resource.allocate(size, stream=stream) for size in sizes)
    lent = resource.allocate(sizes[-1], stream=stream)
    _alive.append(lent[: lent.size])
    lent.close()
    cycle = [resource.allocate(sizes[0], stream=stream)]
    cycle.append(cycle)
    resource.allocate(sizes[0], stream=stream)


MOST_LINES = 200
HANGS_AFTER = 15  # seconds without a step; one takes milliseconds


def collect_in_the_middle(path, name, qualified):
    """Let the collector run at each line of an allocation and its close in turn, and find a dropped buffer there."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    tests = _load(path, name, qualified)()
    gc.disable()  # when it runs is decided here
    gc.freeze()  # what is there by now is no garbage: three collections a step would look through all of pytest
    resource = tests.make_resource()
    for number in range(1, MOST_LINES):
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        cycle = [resource.allocate(tests.sizes[0], stream=stream)]
        cycle.append(cycle)
        del cycle
        to_go = number

        def trace(frame, event, argument):
            nonlocal to_go
            if event == "line":
                to_go -= 1
                if to_go == 0:
                    gc.collect()
            return trace

        sys.settrace(trace)
        try:
            resource.allocate(tests.sizes[0], stream=stream).close()
        finally:
            sys.settrace(None)
        gc.collect()
        if to_go > 0:
            break  # the two have fewer lines
    faulthandler.cancel_dump_traceback_later()


def peer(pipe):
    """Receive a buffer, read it, write it, and say what was read. Runs in a process of its own."""
    from cuda.core.testing._bytes import get, put

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer, answer = pipe.recv()
    read = get(buffer, stream)
    put(buffer, answer, stream)
    buffer.close()
    stream.close()
    pipe.send(read)
    pipe.recv()  # the other side has looked
