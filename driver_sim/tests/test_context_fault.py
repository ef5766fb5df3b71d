# SPDX-License-Identifier: Apache-2.0
"""Work that runs after its memory was unmapped faults the context for good, as every later use of it says.

An unmap does not wait for work in flight, here as on a GPU. Each case is a process of its own: a fault stays.
"""

import pytest

from sim_helpers import run_test_program

LATE_WRITE = """
import sys
from sim_helpers import *
start()
how = sys.argv[1]
stream = ok(cu.cuStreamCreate(1)); event = ok(cu.cuEventCreate(2))
memory = Mapped(); other = Mapped()
with sim.hold():
    if how.startswith("copy"):
        to, source = (memory, other) if how == "copy to" else (other, memory)
        ok(cu.cuMemcpyDtoDAsync(to.base, source.base, 16, stream))
    else:
        ok(cu.cuMemsetD8Async(memory.base, 1, 16, stream))
    ok(cu.cuEventRecord(event, stream))
    if how == "waited for":
        ok(cu.cuStreamSynchronize(stream))
    ok(cu.cuMemUnmap(memory.base, GRANULE))
    if how.startswith("mapped again"):
        ok(cu.cuMemMap(memory.base, GRANULE, 0, memory.chunk, 0))
    if how == "mapped again with access":
        ok(cu.cuMemSetAccess(memory.base, GRANULE, [read_write()], 1))
    if how == "released":
        ok(cu.cuMemRelease(memory.chunk)); ok(cu.cuMemAddressFree(memory.base, GRANULE))
    print(cu.cuStreamSynchronize(stream)[0].name)
answers = {
    "alloc": cu.cuMemAlloc(16), "set": cu.cuMemsetD8(other.base, 1, 16),
    "context": cu.cuCtxSynchronize(), "query": cu.cuStreamQuery(stream),
    "event": cu.cuEventQuery(event), "pool": cu.cuMemAllocAsync(16, stream),
    "create": cu.cuStreamCreate(1),
}
print(*sorted({answer[0].name for answer in answers.values()}))
"""

FAULT = "CUDA_ERROR_ILLEGAL_ADDRESS"


@pytest.mark.parametrize("how", ["set", "copy to", "copy from", "mapped again", "released"])
def test_work_on_unmapped_memory_faults_the_context_for_good(how):
    assert run_test_program(LATE_WRITE, how).split() == [FAULT, FAULT]


@pytest.mark.parametrize("how", ["waited for", "mapped again with access"])
def test_work_on_mapped_memory_does_not(how):
    assert run_test_program(LATE_WRITE, how).split() == ["CUDA_SUCCESS", "CUDA_SUCCESS"]


OTHER_CONTEXT = """
from sim_helpers import *
start()
first = ok(cu.cuCtxGetCurrent())
second = ok(cu.cuDevicePrimaryCtxRetain(1))
memory = Mapped()
with sim.hold():
    ok(cu.cuMemsetD8Async(memory.base, 1, 16, 1))
    memory.close()
    print(cu.cuCtxSynchronize()[0].name)
ok(cu.cuCtxSetCurrent(second))
pointer = ok(cu.cuMemAlloc(16))
ok(cu.cuMemsetD8(pointer, 1, 16)); ok(cu.cuMemFree(pointer))
ok(cu.cuDevicePrimaryCtxReset(0))
ok(cu.cuCtxSetCurrent(ok(cu.cuDevicePrimaryCtxRetain(0))))
print(cu.cuMemAlloc(16)[0].name)
"""


def test_the_other_device_and_the_context_after_a_reset_work():
    assert run_test_program(OTHER_CONTEXT).split() == [FAULT, "CUDA_SUCCESS"]
