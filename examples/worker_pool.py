# SPDX-License-Identifier: Apache-2.0
"""Send buffers to worker processes and get them back. One worker is killed in the middle, and nothing is lost.

    python examples/worker_pool.py [--driver auto|sim|gpu] [--workers N] [--tasks N]

Every buffer stays the parent's: a worker has an import of it, which ends with the worker, however that ends. So the
parent writes what the killed worker has spoiled once more, and gives the same buffer to another. Each worker writes in
place, and sends the buffer back with an event that says when its work is done on the device; the parent reads behind
that event.

Runs on the GPU if there is one, else on the simulated driver. Ends with exit code 1, and says what is missing, when a
result, a byte of memory or a file descriptor has not come back.
"""

import argparse
import gc
import multiprocessing
import os
import signal
import sys
from multiprocessing import connection, resource_tracker
from pathlib import Path

CHUNK = 64 << 10
VICTIM = 1  # this worker is killed in the middle of its first task


def choose_driver(choice):
    """Load the driver that is asked for, before anything imports ``cuda.core``; workers inherit the choice."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    try:
        from grow_buffer import choose_driver
    finally:
        del sys.path[0]
    return choose_driver(choice)


# --- the workers --------------------------------------------------------------------------------------------------


def work(pipe, worker):
    """Turn the text of each buffer that arrives into capitals, in place."""
    from cuda.core import Device, EventOptions, LegacyPinnedMemoryResource

    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    staging = LegacyPinnedMemoryResource().allocate(CHUNK)
    while (task := pipe.recv()) is not None:
        number, buffer = task
        with buffer:
            buffer.copy_to(staging, stream=stream)
            stream.sync()
            with memoryview(staging) as text:
                text[:] = bytes(text).upper()
                if worker == VICTIM:
                    text[CHUNK // 2 :] = bytes(CHUNK // 2)  # half of it is wrong when the worker dies
                    buffer.copy_from(staging, stream=stream)
                    stream.sync()
                    os.kill(os.getpid(), signal.SIGKILL)
            buffer.copy_from(staging, stream=stream)
            event = stream.record(options=EventOptions(ipc_enabled=True))
            pipe.send((number, buffer, event))
            pipe.recv()  # the parent has opened the event
            event.close()
        del task, buffer
    staging.close()
    stream.close()


class Worker:
    """A worker process, and the number of the task that it has."""

    def __init__(self, context, number):
        self.number = number
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, number), daemon=True)
        self.process.start()
        theirs.close()
        self.task = None

    def give(self, task, buffer):
        self.task = task
        self.pipe.send((task, buffer))

    def end(self):
        """Let it end; return its exit code."""
        self.pipe.send(None)
        return self.bury()

    def bury(self):
        """Wait for it to end, and return its exit code."""
        self.process.join()
        code = self.process.exitcode
        self.pipe.close()
        self.process.close()
        return code


# --- the parent ---------------------------------------------------------------------------------------------------


class Pool:
    """Gives each task to a worker that is free, and once more if the worker dies over it."""

    def __init__(self, device, stream, workers):
        from cuda.core import DeviceMemoryResource, LegacyPinnedMemoryResource

        self.context = multiprocessing.get_context("spawn")
        self.stream = stream
        self.resource = DeviceMemoryResource(device, {"ipc_enabled": True})
        self.staging = LegacyPinnedMemoryResource().allocate(CHUNK)
        self.buffers = {}
        self.results = {}
        self.given = {}
        self.exit_codes = []
        self.started = 0
        self.workers = [self._start() for _ in range(workers)]

    def _start(self):
        worker = Worker(self.context, self.started)
        self.started += 1
        return worker

    def run(self, texts):
        """Return the results of all tasks, in order."""
        waiting = list(range(len(texts)))
        while len(self.results) < len(texts):
            for worker in self.workers:
                if worker.task is None and waiting:
                    number = waiting.pop(0)
                    self._put(number, texts[number])
                    self._give(worker, number)
            ready = connection.wait([worker.pipe for worker in self.workers if worker.task is not None])
            for worker in [worker for worker in self.workers if worker.pipe in ready]:
                if not self._take(worker):
                    waiting.insert(0, worker.task)
                    self.exit_codes.append(worker.bury())
                    print(f"worker {worker.number} was killed over task {worker.task}; another gets it")
                    self.workers[self.workers.index(worker)] = self._start()
        return [self.results[number] for number in range(len(texts))]

    def _put(self, number, text):
        if number not in self.buffers:
            self.buffers[number] = self.resource.allocate(CHUNK, stream=self.stream)
        with memoryview(self.staging) as there:
            there[:] = text
        self.buffers[number].copy_from(self.staging, stream=self.stream)
        self.stream.sync()  # the workers have no other way to know that the text is there

    def _give(self, worker, number):
        self.given.setdefault(number, []).append(worker.number)
        worker.give(number, self.buffers[number])

    def _take(self, worker):
        """Read what a worker has sent back. False if it has sent nothing and is gone."""
        try:
            number, back, event = worker.pipe.recv()
        except EOFError:
            return False
        worker.pipe.send("taken")
        # The buffer that comes home is an import of this process's own memory, as mapped as it was over there.
        self.stream.wait(event)
        back.copy_to(self.staging, stream=self.stream)
        self.stream.sync()
        self.results[number] = bytes(self.staging)
        back.close()
        event.close()
        self.buffers.pop(number).close()
        worker.task = None
        return True

    def close(self):
        self.exit_codes += [worker.end() for worker in self.workers]
        self.staging.close()
        self.resource.close()


def expect(true, text):
    if not true:
        raise SystemExit(f"not as it should be: {text}")


def main_job(device, workers, tasks):
    """Run the tasks; print who had what."""
    stream = device.create_stream()
    texts = [
        (f"text number {number}, to be written in capitals. " * CHUNK).encode()[:CHUNK]
        for number in range(tasks)
    ]
    pool = Pool(device, stream, workers)
    results = pool.run(texts)
    expect(results == [text.upper() for text in texts], "every result is the whole text in capitals")
    pool.close()
    stream.close()
    for number in range(tasks):
        print(f"task {number}: worker {', then worker '.join(map(str, pool.given[number]))}")
    print(f"workers ended with {', '.join(map(str, sorted(pool.exit_codes)))}")
    expect(
        sorted(set(pool.exit_codes)) == [-signal.SIGKILL, 0],
        "one worker was killed and the others ended well",
    )
    expect(sum(len(given) for given in pool.given.values()) == tasks + 1, "one task was given twice")


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Send buffers to worker processes and get them back.")
    parser.add_argument("--driver", choices=("auto", "sim", "gpu"), default="auto")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=9)
    options = parser.parse_args(arguments)
    if not VICTIM < options.workers <= options.tasks:
        parser.error("at least 2 workers are needed, and a task for each")
    print(f"driver: {choose_driver(options.driver)}")
    from cuda.core import Device
    from cuda.core._memory import _counters

    device = Device(0)
    device.set_current()
    resource_tracker.ensure_running()  # it keeps a pipe open from the first process on
    before = descriptors()
    main_job(device, options.workers, options.tasks)
    gc.collect()
    expect(not _counters.live(), f"still held here: {_counters.live()}")
    sim = sys.modules.get("cuda_driver_sim")
    if sim is not None:
        left = {kind: number for kind, number in sim.live().items() if kind != "primary_context"}
        expect(not left, f"still live in the driver: {left}")
        expect(not sim.refused(), f"the driver refused {sim.refused()}")
    stop_sharing()
    expect(descriptors() <= before, f"{descriptors() - before} file descriptors are open that were not")
    print("every result and everything that was taken is back")


def stop_sharing():
    """End the thread with which ``multiprocessing`` sends file descriptors; it has some of its own open."""
    from multiprocessing import resource_sharer

    resource_sharer.stop()


if __name__ == "__main__":
    main()
