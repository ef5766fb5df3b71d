# SPDX-License-Identifier: Apache-2.0
"""The test class that an author derives from: what it needs to know, and its fixtures."""

from __future__ import annotations

import contextlib
import gc

import pytest
from hypothesis import settings

from cuda.core import Buffer, CUDAError, Device, MemoryResource, Ownership
from cuda.core.testing._allocation_checks import AllocationChecks
from cuda.core.testing._capability_checks import CapabilityChecks
from cuda.core.testing._contract import call, require, shown
from cuda.core.testing._failure_checks import FailureChecks
from cuda.core.testing._machine import MachineCheck
from cuda.core.testing._options import check_options
from cuda.core.testing._release_checks import ReleaseChecks
from cuda.core.testing._watch import DriverCalls, settled

__all__ = ["MemoryResourceTests"]


_FAILED = pytest.StashKey[str]()  # of a class: the first of its checks that has failed
_BAD_OPTION = pytest.StashKey[str]()  # of a class: what was said of it
_NO_DRIVER = pytest.StashKey[str]()  # of a session: that it has none was said

_NO_DRIVER_TEXT = (
    "there is no GPU to test the memory resource on: install cuda-driver-sim (pip install ./driver_sim in a checkout "
    "of cuda-core) and run pytest --memory-driver=sim, or run pytest on a machine with a GPU"
)


# pytest runs what the last base has first: what is plain and quick goes before what builds on it.
class MemoryResourceTests(MachineCheck, CapabilityChecks, FailureChecks, ReleaseChecks, AllocationChecks):
    """Tests of the contract between :class:`cuda.core.MemoryResource` and its author.

    Derive a class whose name begins with ``Test``, override :meth:`make_resource`, and set the attributes below where
    the resource differs.

    Attributes
    ----------
    sizes : tuple of int
        Sizes in bytes that are asked for.
    granularity : int
        The resource rounds sizes up to a multiple of this. 1 by default: a buffer has the size asked for.
    alignment : int or None
        What addresses must be a multiple of. None by default: 256 where a device can use the memory, else 8.
    supports_zero : bool
        Whether ``allocate(0)`` gives an empty buffer. Where it is False, it must raise.
    too_large : int
        A size in bytes that cannot be had.
    stream_ordered : bool
        Whether memory is allocated and freed in the order of the stream, so that nobody has to wait in between.
    exportable : bool
        Whether buffers can be sent to another process through ``multiprocessing``.
    growable : bool
        Whether the resource has ``modify_allocation(buffer, new_size)``.
    checks_frees : bool
        Whether a ``deallocate`` by hand is refused while an open buffer owns the address, as
        :meth:`cuda.core.MemoryResource.checked_free` does it.
    driver_failures : bool
        Whether a driver call made by the resource may be made to fail. False where the memory is another library's that
        ends the process or stops working then.
    machine_settings : hypothesis.settings
        How long the machine of random operations runs.

    Notes
    -----
    An attribute that is none of these, such as a size of 0 or ``True``, is refused once, before any check.

    A test that cannot be made here is skipped and says why: making driver calls fail, for one, needs the simulated
    driver, alone or in front of a real one.

    Examples
    --------
    .. code-block:: python

        class TestMyResource(MemoryResourceTests):
            sizes = (1, 4096, 1 << 20)

            def make_resource(self) -> MemoryResource:
                return MyResource(block_size=4096)

            def in_use(self, resource: MemoryResource) -> object:
                return len(resource.blocks)
    """

    sizes: tuple[int, ...] = (1, 100, 4096, 1 << 20)
    granularity: int = 1
    alignment: int | None = None
    supports_zero: bool = True
    too_large: int = 1 << 60
    stream_ordered: bool = False
    exportable: bool = False
    growable: bool = False
    checks_frees: bool = False
    driver_failures: bool = True
    machine_settings: settings = settings(
        max_examples=15, stateful_step_count=20, deadline=None, derandomize=True
    )

    # -- what the author says --------------------------------------------------------------------------------------

    def make_resource(self):
        """Make a resource. To be overridden. Called for each test, and in a child process.

        Returns
        -------
        MemoryResource
        """
        raise NotImplementedError(f"{type(self).__name__} must override make_resource")

    def in_use(self, resource):
        """Say how much of the memory behind a resource is in use. To be overridden where the driver cannot tell.

        Any value that is the same again when all buffers are closed, such as a number of blocks. By default what the
        simulated driver counts; None where there is nothing to count by.

        Parameters
        ----------
        resource : MemoryResource
            What :meth:`make_resource` returned.

        Returns
        -------
        object
        """
        return DriverCalls().live()

    # -- fixtures --------------------------------------------------------------------------------------------------

    @pytest.fixture
    def device(self, request):
        """Device 0, current."""
        stash = request.session.stash
        if _NO_DRIVER in stash:
            pytest.skip("there is no GPU; see the first error")
        device = seen = None
        try:
            device = Device(0)
        except CUDAError as error:
            if error.result_name != "CUDA_ERROR_NO_DEVICE":
                raise
            seen = error
        except RuntimeError as error:
            seen = error.__cause__ or error  # whose own text is for programs
        if device is None:  # said once, in the place of an error of every check
            stash[_NO_DRIVER] = str(seen)
            pytest.fail(f"{_NO_DRIVER_TEXT}\n  seen: {seen}", pytrace=False)
        device.set_current()
        return device

    @pytest.fixture
    def stream(self, device):
        """A stream of the device."""
        stream = device.create_stream()
        yield stream
        stream.close()

    @pytest.fixture
    def resource(self, device):
        """A resource of the author's."""
        made = self.make_resource()
        require(
            isinstance(made, MemoryResource),
            "a memory resource is derived from cuda.core.MemoryResource",
            f"make_resource() returned {type(made).__name__}",
        )
        return made

    @pytest.fixture
    def driver_calls(self):
        """What the driver is asked, where that can be seen."""
        return DriverCalls()

    @pytest.fixture
    def refusals_allowed(self):
        """To be asked for by a test that makes the driver refuse calls."""

    @pytest.fixture(autouse=True)
    def quick_collections(self):
        """Have the collector look at what the check makes alone, and not each time at all of pytest and hypothesis.

        A suite that keeps things out of collections itself goes on to: they cannot be told from what is kept out here.
        """
        frozen_before = gc.get_freeze_count()
        gc.freeze()
        yield
        if not frozen_before:
            gc.unfreeze()

    @pytest.fixture(autouse=True)
    def options(self, request):
        """Refuse attributes of the class that are none, once, in the place of what every check would make of them."""
        stash = request.node.getparent(pytest.Class).stash
        if _BAD_OPTION in stash:
            pytest.skip("the class has a bad attribute; see the first error")
        try:
            check_options(self)
        except (TypeError, ValueError) as error:
            stash[_BAD_OPTION] = str(error)
            pytest.fail(f"{type(self).__name__}.{error}", pytrace=False)

    @pytest.fixture(autouse=True)
    def failures(self, request, options, quick_collections):
        """Note that a check of this class has failed, for those that would only say the same at greater length."""
        stash, session = request.node.getparent(pytest.Class).stash, request.session
        before = session.testsfailed
        yield
        if session.testsfailed > before:
            stash.setdefault(_FAILED, request.node.name)

    @pytest.fixture
    def after_the_others(self, request, failures):
        """To be asked for by a check that is of no use while another one fails: it is skipped then."""
        failed = request.node.getparent(pytest.Class).stash.get(_FAILED, None)
        if failed is not None:
            pytest.skip(f"{failed} has failed: mend that first")

    @pytest.fixture(autouse=True)
    def no_refusals(self, request, device, driver_calls, failures):
        """Fail where the driver has refused a call: a resource that swallows the error would hide a second free."""
        if "refusals_allowed" in request.fixturenames or not driver_calls.seen:
            yield
            return
        before = len(driver_calls.refused())
        yield
        gc.collect()
        # Libraries ask what the current context is on threads that have none; that is no free.
        refused = [call for call in driver_calls.refused()[before:] if "cuCtxGetDevice" not in call]
        if refused:  # which is counted only when this has ended
            request.node.getparent(pytest.Class).stash.setdefault(_FAILED, request.node.name)
        require(
            not refused,
            "the driver is asked only for what it can do: a free it refuses was made twice, or with a wrong address",
            ", ".join(refused),
        )

    # -- what the checks share -------------------------------------------------------------------------------------

    def rounded(self, size):
        """Return the size that a buffer has which was asked for with ``size``."""
        return -(-size // self.granularity) * self.granularity

    def take(self, resource, size, stream):
        """Allocate, and check what came back."""
        buffer = call(
            lambda: resource.allocate(size, stream=stream),
            f"allocate(size, stream=stream) gives a buffer; it was asked for {size} bytes",
        )
        require(
            isinstance(buffer, Buffer),
            "allocate returns a Buffer, made by Buffer.from_handle(ptr, size, mr=self, stream=stream)",
            f"{type(buffer).__name__}: {shown(buffer)}",
        )
        # Before anything else that a check looks at: whoever leaves out mr=self would be told of every consequence.
        require(
            buffer.ownership is Ownership.OWNED,
            "allocate returns a buffer that owns its memory: pass mr=self to Buffer.from_handle",
            f"a buffer that is {buffer.ownership.name}",
        )
        require(
            buffer.memory_resource is resource,
            "the memory is returned by the resource that was asked: pass mr=self to Buffer.from_handle",
            f"a buffer of {shown(buffer.memory_resource)}",
        )
        return buffer

    def close(self, buffer, stream=None):
        """Close a buffer; it must not raise."""
        return call(
            lambda: buffer.close(stream),
            "close() frees: deallocate(ptr, size, stream=stream) is called, and returns when the memory is free",
        )

    @contextlib.contextmanager
    def all_returned(self, resource, wanted, *, warm_up=None):
        """Check that as much is in use behind a ``with`` block as before it.

        ``warm_up`` is done first: what a resource keeps for good after its first use is no leak.
        """
        if warm_up is not None:
            warm_up()
        gc.collect()
        before = self.in_use(resource)
        yield
        gc.collect()
        after = settled(lambda: self.in_use(resource), before)
        require(after == before, wanted, lambda: f"in use are {after}, and before it were {before}")

    def one_round(self, resource, stream, size=None):
        """Allocate and close once."""
        self.close(self.take(resource, self.sizes[-1] if size is None else size, stream))

    def ended(self, box, how, stream):
        """End the buffer that is the only thing in the list ``box``."""
        wanted = "a buffer that is closed, leaves its with block or is dropped is returned by deallocate"
        if how == "close":
            self.close(box[0])
        elif how == "with":

            def leave():
                with box[0]:
                    pass

            call(leave, wanted)
        elif how == "cycle":
            box.append(box)  # the caller drops the list, and the collector finds it
        if how in ("close", "with"):
            state = box[0].ownership
            require(state is Ownership.RELEASED, wanted, f"the buffer is {state.name}")
        if how != "cycle":
            box.clear()
