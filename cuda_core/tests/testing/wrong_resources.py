# SPDX-License-Identifier: Apache-2.0
"""Resources that break the contract, each in one way, as authors do. `test_wrong_resources.py` runs the kit over them.

``FAULTS`` says which checks find the fault, the first of them with which words.
"""

import ctypes
import itertools
import operator
import threading

from hypothesis import Phase, settings

from cuda.bindings import driver
from cuda.core import Buffer, MemoryResource
from cuda.core.testing import MemoryResourceTests

FAULTS = {}
ALL_FAILURES = "..."


def fault(said, *checks):
    """Enter a test class: what the first of these checks says, and the checks that must fail; no other may."""

    def enter(kind):
        FAULTS[kind.__name__] = (said, checks)
        return kind

    return enter


def check(answer):
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(result.name)
    return int(values[0]) if values else None


class Right(MemoryResource):
    """Plain device memory, without a fault."""

    is_device_accessible = True
    is_host_accessible = False
    device_id = 0

    def take(self, size):
        return check(driver.cuMemAlloc(size)) if size else 0

    def give(self, ptr):
        if ptr:
            check(driver.cuMemFree(ptr))

    def wrap(self, ptr, size, stream):
        try:
            return Buffer.from_handle(ptr, size, mr=self, stream=stream)
        except BaseException:
            self.give(ptr)
            raise

    def allocate(self, size, *, stream=None):
        return self.wrap(self.take(size), size, stream)

    def deallocate(self, ptr, size, *, stream=None):
        self.give(ptr)


class Frame(MemoryResourceTests):
    """Makes the resource of the class ``Kind`` inside."""

    Kind = Right
    # These take time, and each is asked for by the faults that it is for.
    test_any_order_of_operations = None
    test_the_end_of_the_program = None
    test_the_collector_in_the_middle = None
    sizes = (1, 100, 4096)
    machine_settings = settings(
        max_examples=8,
        stateful_step_count=12,
        deadline=None,
        derandomize=True,
        phases=(Phase.generate,),
        database=None,
    )

    def make_resource(self):
        return self.Kind()


class TestRight(Frame):
    """Passes: what is found below is the fault, and not the frame around it."""

    test_any_order_of_operations = MemoryResourceTests.test_any_order_of_operations
    test_the_end_of_the_program = MemoryResourceTests.test_the_end_of_the_program
    test_the_collector_in_the_middle = MemoryResourceTests.test_the_collector_in_the_middle


FAULTS["TestRight"] = ("", ())


@fault("it freed the memory of an open buffer", "test_frees_by_hand")
class TestFreesUnderABuffer(Frame):
    """Says that it asks before it frees, and does not."""

    checks_frees = True

    class Kind(Right):
        pass


@fault("a buffer is as large as was asked for", "test_a_buffer_owns_what_was_asked_for", "test_threads")
class TestTooSmall(Frame):
    """Hands out a buffer that is one byte short."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            ptr = self.take(size)
            return self.wrap(ptr, max(size - 1, 0), stream)


@fault("an address is a multiple of 256", "test_addresses_are_aligned")
class TestMisaligned(Frame):
    """Puts a header of 8 bytes before each allocation."""

    class Kind(Right):
        def take(self, size):
            return check(driver.cuMemAlloc(size + 8)) + 8 if size else 0

        def give(self, ptr):
            if ptr:
                check(driver.cuMemFree(ptr - 8))


@fault(
    "a buffer that owns its memory: pass mr=self to Buffer.from_handle",
    "test_a_buffer_owns_what_was_asked_for",
    ALL_FAILURES,
)
class TestBorrows(Frame):
    """Forgets ``mr=self``, so that nobody frees."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            return Buffer.from_handle(self.take(size), size)


class RightHost(Right):
    """Memory of the host alone, without a fault."""

    is_device_accessible, is_host_accessible, device_id = False, True, -1

    def __init__(self):
        self.blocks = {}

    def take(self, size):
        block = (ctypes.c_char * max(size, 1))()
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    def give(self, ptr):
        del self.blocks[ptr]


class FrameOfTheHost(Frame):
    def in_use(self, resource):
        return len(resource.blocks)


class TestRightHost(FrameOfTheHost):
    """Passes."""

    Kind = RightHost


FAULTS["TestRightHost"] = ("", ())


@fault("seen: a buffer that is BORROWED", "test_a_buffer_owns_what_was_asked_for", ALL_FAILURES)
class TestBorrowsOfTheHost(FrameOfTheHost):
    """Forgets ``mr=self`` where the memory is the host's."""

    class Kind(RightHost):
        def allocate(self, size, *, stream=None):
            return Buffer.from_handle(self.take(size), size)


@fault(
    "a buffer of <",
    "test_a_buffer_owns_what_was_asked_for",
    ALL_FAILURES,
)
class TestBuffersOfAnother(Frame):
    """Returns the buffers of a resource inside, which frees them."""

    class Kind(Right):
        def __init__(self):
            self.inner = Right()

        def allocate(self, size, *, stream=None):
            return self.inner.allocate(size, stream=stream)


@fault("frees were ordered by", "test_the_stream_of_the_free", "test_a_stream_that_is_none")
class TestForgetsTheStreamOfTheHost(FrameOfTheHost):
    """Does not pass the stream on, as the host needs none."""

    class Kind(RightHost):
        def allocate(self, size, *, stream=None):
            if operator.index(size) < 0:
                raise ValueError("size")
            return Buffer.from_handle(self.take(size), size, mr=self)


@fault("deallocate can be called with and without a stream", "test_it_can_be_called_by_hand")
class TestNeedsAStream(Frame):
    """``deallocate`` has a parameter ``stream`` that cannot be left out."""

    class Kind(Right):
        def deallocate(self, ptr, size, stream):
            self.give(ptr)


@fault("what is closed is returned", "test_memory_comes_back", ALL_FAILURES)
class TestNeverFrees(Frame):
    """Keeps what it should free."""

    class Kind(Right):
        def deallocate(self, ptr, size, *, stream=None):
            pass


@fault("a free it refuses was made twice", "test_memory_comes_back", ALL_FAILURES)
class TestFreesTwice(Frame):
    """Frees twice and does not look at the driver's answer."""

    class Kind(Right):
        def deallocate(self, ptr, size, *, stream=None):
            self.give(ptr)
            if ptr:
                driver.cuMemFree(ptr)


@fault(
    "buffers that are open at once have no byte in common", "test_open_buffers_do_not_overlap", ALL_FAILURES
)
class TestOverlaps(Frame):
    """Gives each second allocation the memory of the one before."""

    test_any_order_of_operations = MemoryResourceTests.test_any_order_of_operations

    class Kind(Right):
        def __init__(self):
            self.count = itertools.count()
            self.users = {}
            self.last = None
            self.lock = threading.RLock()

        def take(self, size):
            if not size:
                return 0
            with self.lock:
                if next(self.count) % 2 and self.last in self.users:
                    self.users[self.last] += 1
                    return self.last
                self.last = check(driver.cuMemAlloc(8192))
                self.users[self.last] = 1
                return self.last

        def give(self, ptr):
            if not ptr:
                return
            with self.lock:
                self.users[ptr] -= 1
                if not self.users[ptr]:
                    del self.users[ptr]
                    check(driver.cuMemFree(ptr))


@fault("bytes of a buffer are there to be written", "test_every_byte_can_be_used", ALL_FAILURES)
class TestSaysMoreThanThereIs(Frame):
    """Rounds the size of the buffer up, and not that of the memory."""

    granularity = 1 << 16

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            return self.wrap(self.take(size), -(-size // (1 << 16)) * (1 << 16), stream)


@fault("the flags of a resource say who can use its memory", "test_the_driver_agrees_where_the_memory_is")
class TestSaysThatTheHostCannot(Frame):
    """Hands out pinned memory and says that only a device can use it."""

    class Kind(Right):
        def take(self, size):
            return check(driver.cuMemAllocHost(size)) if size else 0

        def give(self, ptr):
            if ptr:
                check(driver.cuMemFreeHost(ptr))


@fault("the stream given to allocate orders the free", "test_the_stream_of_the_free")
class TestForgetsTheStream(Frame):
    """Does not pass the stream on."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            if stream is not None and not hasattr(stream, "handle"):
                raise TypeError("stream")
            if stream is not None and stream.is_closed:
                raise RuntimeError("closed")
            return self.wrap(self.take(size), size, None)


@fault(
    "if Buffer.from_handle raises, free what it was given",
    "test_a_stream_that_is_none",
    "test_a_size_that_is_none",
)
class TestLosesWhatFromHandleRefuses(Frame):
    """Takes memory, and does not give it back when ``from_handle`` raises."""

    class Kind(Right):
        def wrap(self, ptr, size, stream):
            return Buffer.from_handle(ptr, size, mr=self, stream=stream)


@fault("deallocate is called once for each allocation", "test_each_end_asks_once", ALL_FAILURES)
class TestKeepsItsBuffers(Frame):
    """Keeps a reference to each buffer, so that dropping it frees nothing."""

    class Kind(Right):
        def __init__(self):
            self.buffers = {}

        def allocate(self, size, *, stream=None):
            buffer = super().allocate(size, stream=stream)
            self.buffers[buffer.handle] = buffer
            return buffer

        def deallocate(self, ptr, size, *, stream=None):
            self.buffers.pop(ptr, None)
            super().deallocate(ptr, size, stream=stream)


@fault(
    "close() frees: deallocate(ptr, size, stream=stream) is called", "test_memory_comes_back", ALL_FAILURES
)
class TestTakesNoStream(Frame):
    """``deallocate`` lacks the parameter ``stream``."""

    class Kind(Right):
        def deallocate(self, ptr, size):
            self.give(ptr)


@fault(
    "a deallocate whose call of cuMemFree (1) fails raises, or it has freed the memory all the same",
    "test_every_driver_call_of_a_free_fails",
)
class TestSwallowsAFailedFree(Frame):
    """Does not look at the driver's answer to its free."""

    class Kind(Right):
        def give(self, ptr):
            if ptr:
                driver.cuMemFree(ptr)


@fault(
    "raising in deallocate promises that nothing was freed or forgotten",
    "test_every_driver_call_of_a_free_fails",
)
class TestForgetsWhenAFreeFails(Frame):
    """Drops its own entry before a free that then fails, and does not find it the next time."""

    class Kind(Right):
        def __init__(self):
            self.sizes = {}

        def take(self, size):
            ptr = super().take(size)
            self.sizes[ptr] = size
            return ptr

        def give(self, ptr):
            if ptr:
                del self.sizes[ptr]
                super().give(ptr)


@fault(
    "an allocation that raises has taken nothing; its call of cuMemAllocHost (1) failed",
    "test_every_driver_call_of_an_allocation_fails",
)
class TestLosesTheFirstOfTwo(Frame):
    """Takes a pinned page beside each allocation; if there is none, the allocation stays taken."""

    class Kind(Right):
        def __init__(self):
            self.pages = {}

        def take(self, size):
            ptr = super().take(size)
            if ptr:
                self.pages[ptr] = check(driver.cuMemAllocHost(64))
            return ptr

        def give(self, ptr):
            page = self.pages.get(ptr)
            if page:
                check(driver.cuMemFreeHost(page))
                del self.pages[ptr]
            super().give(ptr)


@fault("allocate and deallocate can be called by several threads at once", "test_threads", ALL_FAILURES)
class TestIsForOneThread(Frame):
    """Hands the address from one step to the next in an attribute that all threads share."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            self.ptr = self.take(size)
            if threading.current_thread() is not threading.main_thread():
                threading.Event().wait(0.002)
            return self.wrap(self.ptr, size, stream)


@fault("a lock that is held there must be a threading.RLock", "test_the_collector_in_the_middle")
class TestHoldsALock(Frame):
    """Holds a lock in ``allocate`` and in ``deallocate``."""

    test_the_collector_in_the_middle = MemoryResourceTests.test_the_collector_in_the_middle

    class Kind(Right):
        def __init__(self):
            self.lock = threading.Lock()

        def allocate(self, size, *, stream=None):
            with self.lock:
                return super().allocate(size, stream=stream)

        def deallocate(self, ptr, size, *, stream=None):
            with self.lock:
                super().deallocate(ptr, size, stream=stream)


@fault("a program that ends with open buffers ends well and says nothing", "test_the_end_of_the_program")
class TestComplainsAtTheEnd(Frame):
    """Has a method for the end of the program that raises where buffers are open."""

    test_the_end_of_the_program = MemoryResourceTests.test_the_end_of_the_program

    class Kind(Right):
        def __init__(self):
            self.open = set()

        def take(self, size):
            ptr = super().take(size)
            if ptr:
                self.open.add(ptr)
            return ptr

        def give(self, ptr):
            super().give(ptr)
            self.open.discard(ptr)

        def at_exit(self):
            if self.open:
                raise RuntimeError(f"{len(self.open)} allocations leaked")


@fault("what cannot be had raises", "test_more_than_there_is", ALL_FAILURES)
class TestGivesLessThanAsked(Frame):
    """Falls back to what there is."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            try:
                return super().allocate(size, stream=stream)
            except RuntimeError:
                return super().allocate(4096, stream=stream)


@fault("allocate returns a Buffer", "test_a_buffer_owns_what_was_asked_for", ALL_FAILURES)
class TestReturnsAnAddress(Frame):
    """Returns the address alone."""

    class Kind(Right):
        def allocate(self, size, *, stream=None):
            self.kept = super().allocate(size, stream=stream)
            return self.kept.handle
