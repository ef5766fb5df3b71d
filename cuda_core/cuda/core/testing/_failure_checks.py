# SPDX-License-Identifier: Apache-2.0
"""What a resource does when a driver call of its own fails: each call of an operation fails once."""

import pytest

from cuda.core import Ownership
from cuda.core.testing._bytes import get, pattern, put
from cuda.core.testing._contract import require

__all__ = ["FailureChecks"]


def _needs_failures(suite, driver_calls):
    if not suite.driver_failures:
        pytest.skip("driver_failures is False")
    if not driver_calls.seen:
        pytest.skip("driver calls cannot be made to fail here: use --memory-driver=sim, or watched on a GPU")


class FailureChecks:
    """Checks with failures of the driver."""

    def test_every_driver_call_of_an_allocation_fails(self, resource, stream, driver_calls, refusals_allowed):
        """An allocation either raises and has taken nothing, or gives good memory all the same."""
        _needs_failures(self, driver_calls)
        size = self.sizes[-1]
        self.one_round(resource, stream)
        buffer, calls = driver_calls.of(lambda: self.take(resource, size, stream))
        self.close(buffer)
        for name, nth in calls:
            with self.all_returned(
                resource,
                f"an allocation that raises has taken nothing; its call of {name} ({nth}) failed",
            ):
                with driver_calls.fail(name, nth, "CUDA_ERROR_OUT_OF_MEMORY"):
                    try:
                        buffer = resource.allocate(size, stream=stream)
                    except Exception:
                        buffer = None
                if buffer is not None:
                    put(buffer, pattern(buffer.size, 5), stream)
                    require(
                        get(buffer, stream) == pattern(buffer.size, 5),
                        f"an allocation that goes on after a failing {name} gives good memory",
                        "bytes that were written came back as others",
                    )
                    self.close(buffer)
                    buffer = None
            self.one_round(resource, stream)

    def test_every_driver_call_of_a_free_fails(self, resource, stream, driver_calls, refusals_allowed):
        """A free either raises and has freed nothing, so that it can be asked again, or has freed all the same."""
        _needs_failures(self, driver_calls)
        size = self.sizes[-1]
        self.one_round(resource, stream)
        buffer = self.take(resource, size, stream)
        _, calls = driver_calls.of(lambda: self.close(buffer))
        for name, nth in calls:
            with self.all_returned(
                resource,
                f"a deallocate whose call of {name} ({nth}) fails raises, or it has freed the memory all the same",
            ):
                buffer = self.take(resource, size, stream)
                with driver_calls.fail(name, nth, "CUDA_ERROR_UNKNOWN"):
                    try:
                        buffer.close()
                    except Exception as error:
                        raised = error.with_traceback(None)
                    else:
                        raised = None
                if raised is not None:
                    require(
                        buffer.ownership is Ownership.OWNED,
                        "after a deallocate that raised the buffer still owns its memory",
                        f"it is {buffer.ownership.name}",
                    )
                    try:
                        buffer.close()
                    except Exception as error:
                        require(
                            False,
                            "raising in deallocate promises that nothing was freed or forgotten: the next close() asks "
                            f"again and succeeds; its call of {name} ({nth}) had failed",
                            f"{type(error).__name__}: {error}",
                        )
                buffer = raised = None
            self.one_round(resource, stream)
