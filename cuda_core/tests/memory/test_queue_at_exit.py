# SPDX-License-Identifier: Apache-2.0
"""Exit handlers registered before the package run after its own, when nobody makes queued releases any more."""

import pytest

from support import run_child

LATE = """
import atexit

def late():
    for buffer in buffers:
        buffer.close(wait=False)
    print("closed", flush=True)
    with sim.fail("cuMemAllocHost"):
        try:
            resource.allocate(4096, stream=stream)
        except CUDAError as error:
            print(error.result_name, flush=True)
    print(drain(0.01), flush=True)

atexit.register(late)

import cuda_driver_sim as sim
from cuda.core import CUDAError, Device, LegacyPinnedMemoryResource
from cuda.core._memory._queue import drain

device = Device(0)
device.set_current()
stream = device.create_stream()
resource = LegacyPinnedMemoryResource()
source, target = (resource.allocate(4096, stream=stream) for _ in range(2))
buffers = [resource.allocate(4096, stream=stream) for _ in range({count})]
held = sim.hold()
held.__enter__()
source.copy_to(target, stream=stream)
{before}
"""


@pytest.mark.sim_only
@pytest.mark.parametrize(
    "before", ["", "source.close(wait=False)"], ids=["no reaper yet", "a reaper was there"]
)
@pytest.mark.parametrize("count", [1, 1100], ids=["one", "more than the bound"])
def test_a_close_behind_the_end_of_the_queue_waits_for_nobody(before, count):
    """Neither the bound of the queue nor an allocation that is short of memory waits for what nobody will make."""
    done = run_child(LATE.format(count=count, before=before), timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.split() == ["closed", "CUDA_ERROR_OUT_OF_MEMORY", "False"]
