# SPDX-License-Identifier: Apache-2.0
"""What a free has to be: asked once, with what was allocated, from anywhere, at any time."""

import gc
import os
import subprocess
import sys
import threading

import pytest

from cuda.core import Buffer, CloseResult, Ownership
from cuda.core.testing._bytes import get, pattern, put
from cuda.core.testing._contract import ContractBroken, require
from cuda.core.testing._watch import Asked

__all__ = ["ReleaseChecks"]

_ONCE = "deallocate is called once for each allocation, with its address and the size of its buffer"


def _needs_asked(resource):
    """Return what notes the calls of ``deallocate``; skip where nobody is asked."""
    asked = Asked(resource)
    if not asked.possible:
        pytest.skip("this resource frees without asking a deallocate that could be watched")
    return asked


class ReleaseChecks:
    """Checks of ``deallocate``."""

    def test_memory_comes_back(self, resource, stream):
        """However often one allocates and closes, no more is in use."""
        with self.all_returned(
            resource,
            "what is closed is returned: deallocate frees the memory",
            warm_up=lambda: [self.one_round(resource, stream, size) for size in self.sizes],
        ):
            for _ in range(5):
                for buffer in [self.take(resource, size, stream) for size in self.sizes]:
                    self.close(buffer)

    @pytest.mark.parametrize("how", ["close", "with", "drop", "cycle"])
    def test_each_end_asks_once(self, resource, stream, how):
        """Closing, leaving ``with``, dropping the last reference, and the collector ask ``deallocate`` once."""
        asked = _needs_asked(resource)
        for size in self.sizes:
            box = [self.take(resource, size, stream)]
            expected = [(box[0].handle, box[0].size)]
            del asked.calls[:]
            self.ended(box, how, stream)
            del box
            gc.collect()
            require(
                asked.successes() == expected,
                _ONCE,
                f"{how}: {asked.freed_instead_of(expected)}",
            )

    def test_closing_twice_asks_once(self, resource, stream):
        """A second ``close()`` does nothing."""
        asked = _needs_asked(resource)
        buffer = self.take(resource, self.sizes[0], stream)
        self.close(buffer)
        result = self.close(buffer)
        require(result is CloseResult.NOTHING, "a second close() does nothing", f"it returned {result!r}")
        require(len(asked.calls) == 1, _ONCE, lambda: f"asked {len(asked.calls)} times")

    def test_no_free_before_its_time(self, resource, stream):
        """While a buffer is open nobody frees, however many others come and go and are collected."""
        asked = _needs_asked(resource)
        buffer = self.take(resource, self.sizes[-1], stream)
        put(buffer, pattern(buffer.size, 1), stream)
        mine = (buffer.handle, buffer.size)
        for size in self.sizes:
            self.close(self.take(resource, size, stream))
        gc.collect()
        require(
            mine not in asked.successes(), "an open buffer keeps its memory", "deallocate was asked for it"
        )
        require(
            get(buffer, stream) == pattern(buffer.size, 1), "an open buffer keeps its bytes", "they changed"
        )
        self.close(buffer)

    def test_the_stream_of_the_free(self, resource, device, stream):
        """``deallocate`` gets an open stream: the one given to allocate, unless another was given since."""
        asked = _needs_asked(resource)
        one, other = device.create_stream(), device.create_stream()
        self.close(self.take(resource, self.sizes[0], one))
        changed = self.take(resource, self.sizes[0], one)
        changed.set_deallocation_stream(other)
        self.close(changed)
        self.close(self.take(resource, self.sizes[0], one), other)
        handles = [call.stream_handle for call in asked.calls]
        expected = [int(one.handle), int(other.handle), int(other.handle)]
        require(
            all(call.stream_was_open for call in asked.calls),
            "deallocate is handed an open stream",
            lambda: f"{[call.stream for call in asked.calls]}",
        )
        require(
            handles == expected,
            "the stream given to allocate orders the free: pass it on, Buffer.from_handle(..., stream=stream)",
            f"frees were ordered by {[hex(handle) for handle in handles]}, "
            f"not by {[hex(handle) for handle in expected]}",
        )
        del asked.calls[:]
        one.close()
        other.close()

    def test_threads(self, resource, device):
        """Several threads allocate, write, read and close at once."""
        size = max(size for size in self.sizes if size <= 1 << 16 or size == self.sizes[0])
        wrong = []

        def work(seed):
            device.set_current()
            stream = device.create_stream()
            for number in range(15):
                buffer = self.take(resource, size, stream)
                require(
                    buffer.size == self.rounded(size),
                    "a buffer has its size",
                    f"{buffer.size} bytes for {size}",
                )
                data = pattern(buffer.size, seed * 100 + number)
                put(buffer, data, stream)
                require(
                    get(buffer, stream) == data,
                    "a buffer keeps its bytes",
                    f"two have {buffer.handle:#x}, or it was freed too early",
                )
                self.close(buffer)
            stream.close()

        wanted = "allocate and deallocate can be called by several threads at once"
        with self.all_returned(
            resource, wanted, warm_up=lambda: [_in_threads(wrong, [work] * 4), _raise_first(wrong, wanted)]
        ):
            _in_threads(wrong, [work] * 4)
            _raise_first(wrong, wanted)

    def test_a_free_on_another_thread(self, resource, stream):
        """A buffer may end on a thread that has no current context and never had to do with the resource."""
        wrong = []
        closed = self.take(resource, self.sizes[0], stream)
        box = [self.take(resource, self.sizes[0], stream)]

        def work(_):
            self.close(closed)
            box.clear()

        _in_threads(wrong, [work])
        _raise_first(wrong, "deallocate can be called by any thread, also one that has no current context")
        require(closed.ownership is Ownership.RELEASED, _ONCE, f"the buffer is {closed.ownership.name}")

    def test_the_resource_goes_first(self, stream):
        """The last reference to the resource may go before its buffers, which keep it."""
        resource = self.make_resource()
        asked = Asked(resource)
        buffer = self.take(resource, self.sizes[0], stream)
        expected = [(buffer.handle, buffer.size)]
        del resource
        gc.collect()
        self.close(buffer)
        if asked.possible:
            require(asked.successes() == expected, _ONCE, lambda: asked.freed_instead_of(expected))

    def test_resource_and_buffers_in_one_cycle(self, stream):
        """The collector may find a resource and its open buffers as one piece of garbage."""
        resource = self.make_resource()
        asked = Asked(resource)
        buffers = [self.take(resource, size, stream) for size in self.sizes]
        expected = sorted((buffer.handle, buffer.size) for buffer in buffers)
        buffers.append((resource, buffers))
        try:
            resource.its_buffers = buffers
        except AttributeError:
            pass  # a built-in resource takes no attribute; the list is a cycle by itself
        del resource, buffers
        gc.collect()
        if asked.possible:
            require(
                sorted(asked.successes()) == expected,
                _ONCE,
                lambda: asked.freed_instead_of(expected),
            )

    def test_the_collector_in_the_middle(self):
        """The collector may run inside ``allocate`` and ``deallocate``, and free a buffer of the same resource."""
        wanted = (
            "deallocate may be called by the collector while the same thread is inside allocate or deallocate: "
            "a lock that is held there must be a threading.RLock, and what it guards may be half done"
        )
        # In a process of its own: one that hangs in the collector is of no use for anything afterwards.
        try:
            child = _run_child(type(self), "collect_in_the_middle", seconds=120)
        except subprocess.TimeoutExpired:
            raise ContractBroken(wanted, "it does not end") from None
        # The child looks after itself: where a step does not end, it says where each thread stands.
        hangs = "it hangs, " if child.stderr.startswith("Timeout (") else ""
        require(
            (child.returncode, child.stderr) == (0, ""),
            wanted,
            f"{hangs}exit code {child.returncode}, and on standard error:\n{child.stderr}",
        )

    def test_a_deallocate_that_raises(self, resource, stream):
        """Raising promises that nothing was freed: the buffer stays good, and the next ``close()`` asks again."""
        asked = _needs_asked(resource)
        buffer = self.take(resource, self.sizes[-1], stream)
        expected = (buffer.handle, buffer.size)
        put(buffer, pattern(buffer.size, 2), stream)
        asked.fail_next(LookupError("on purpose"))
        try:
            buffer.close()
        except LookupError:
            pass
        else:
            raise ContractBroken("close() raises what deallocate raises", "it returned")
        require(
            buffer.ownership is Ownership.OWNED,
            "after a deallocate that raised the buffer still owns its memory",
            f"it is {buffer.ownership.name}",
        )
        require(get(buffer, stream) == pattern(buffer.size, 2), "it still has its bytes", "others came back")
        self.close(buffer)
        require(asked.successes() == [expected], _ONCE, lambda: asked.freed_instead_of([expected]))

    def test_a_loan_outlives_the_close(self, resource, stream):
        """While a part of the memory is lent, ``close()`` frees nothing; the end of the loan does."""
        asked = Asked(resource)
        with self.all_returned(
            resource, "the end of a loan returns the memory", warm_up=lambda: self.one_round(resource, stream)
        ):
            del asked.calls[:]
            buffer = self.take(resource, self.sizes[-1], stream)
            expected = [(buffer.handle, buffer.size)]
            put(buffer, pattern(buffer.size, 3), stream)
            part = buffer[: buffer.size]
            result = self.close(buffer)
            require(result is CloseResult.LENT, "close() of a lent buffer waits for the loan", f"{result!r}")
            require(asked.calls == [], "nothing is freed while it is lent", "deallocate was asked")
            require(
                get(part, stream) == pattern(part.size, 3),
                "bytes stay as they were while they are lent",
                "others came back",
            )
            part.close()
            if asked.possible:
                require(asked.successes() == expected, _ONCE, lambda: asked.freed_instead_of(expected))

    def test_an_allocation_that_is_handed_over(self, resource, stream):
        """Memory that was detached and adopted is returned by its new buffer alone."""
        asked = Asked(resource)
        with self.all_returned(
            resource,
            "memory that was detached and adopted is returned",
            warm_up=lambda: self.one_round(resource, stream),
        ):
            del asked.calls[:]
            buffer = self.take(resource, self.sizes[-1], stream)
            expected = [(buffer.handle, buffer.size)]
            put(buffer, pattern(buffer.size, 4), stream)
            taken = Buffer.adopt(buffer.detach())
            self.close(buffer)
            require(
                asked.calls == [], "a buffer that gave its memory away frees nothing", "deallocate was asked"
            )
            require(
                get(taken, stream) == pattern(taken.size, 4), "bytes stay as they were", "others came back"
            )
            self.close(taken)
            if asked.possible:
                require(asked.successes() == expected, _ONCE, lambda: asked.freed_instead_of(expected))

    def test_the_end_of_the_program(self):
        """A program may end with open buffers, dropped ones and lent ones: it ends well and says nothing."""
        child = _run_child(type(self), "end_with_everything_alive", seconds=120)
        require(
            (child.returncode, child.stderr) == (0, ""),
            "a program that ends with open buffers ends well and says nothing; what has to be done before Python ends "
            "belongs into a method at_exit(self), which must not raise",
            f"exit code {child.returncode}, and on standard error:\n{child.stderr}",
        )


def _run_child(kind, function, seconds):
    """Call a function of `_child` with a test class, in a process of its own; return how that ended."""
    source = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if source is None or "<locals>" in kind.__qualname__:
        pytest.skip("a child process could not import this class")
    code = f"import sys; from cuda.core.testing._child import {function}; {function}(*sys.argv[1:])"
    return subprocess.run(
        [sys.executable, "-c", code, source, kind.__module__, kind.__qualname__],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
        check=False,
    )


def _in_threads(wrong, functions, seconds=120):
    """Call each function with its number in a thread of its own, at the same time; note what they raise."""
    barrier = threading.Barrier(len(functions))

    def run(number, function):
        barrier.wait()
        try:
            function(number)
        except Exception as error:
            wrong.append(error)

    threads = [
        threading.Thread(target=run, args=(number, function), daemon=True)
        for number, function in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)


def _raise_first(wrong, wanted):
    """Raise what a thread has raised, as what it says about the contract."""
    if not wrong:
        return
    error, wrong[:] = wrong[0], []
    seen = (
        f"{error.wanted}; {error.seen}"
        if isinstance(error, ContractBroken)
        else f"{type(error).__name__}: {error}"
    )
    raise ContractBroken(wanted, seen) from error
