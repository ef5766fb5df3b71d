# SPDX-License-Identifier: Apache-2.0
"""What runs in other processes: a program that ends with buffers alive, and the peer of an export.

python -m cuda.core.testing._child FILE MODULE CLASS
"""

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


def collect_in_the_middle(path, name, qualified):
    """Allocate while the collector runs at every opportunity, and finds dropped buffers of the same resource."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    tests = _load(path, name, qualified)()
    resource = tests.make_resource()
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(1, 1, 1)
    for number in range(60):
        cycle = [resource.allocate(tests.sizes[0], stream=stream)]
        cycle.append(cycle)
        if number % 3 == 0:
            resource.allocate(tests.sizes[0], stream=stream).close()
    gc.set_threshold(*before)
    del cycle
    gc.collect()


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
