# SPDX-License-Identifier: Apache-2.0
"""Long chains of slices, views and owners end without using up the C stack.

Run in a process of its own, and there on a thread with a small stack, so that a fault is a fault at a small depth.
"""

import pytest

from support import run_child

LENGTH = 50_000
_START = f"""
import threading
from cuda.core import Buffer, Device, LegacyPinnedMemoryResource, utils
from cuda.core._memory import _counters

Device(0).set_current()
whole = LegacyPinnedMemoryResource().allocate(4096)
View = utils.StridedMemoryView

def make(step, last):
    for _ in range({LENGTH}):
        last = step(last)
    return last

def closing(step):
    def closed_behind(last):
        following = step(last)
        last.close()
        return following
    return closed_behind

slice_of = lambda last: last[0:]
view_of = lambda last: View.from_dlpack(last, stream_ptr=-1)
owned_by = lambda last: Buffer.from_handle(whole.handle, 16, owner=last)
"""
CHAINS = {
    "slices": "make(slice_of, whole[0:])",
    "slices, each closed behind the next": "make(closing(slice_of), whole[0:])",
    "views": 'make(view_of, View.from_buffer(whole, (16,), dtype="u1"))',
    "views, each closed behind the next": 'make(closing(view_of), View.from_buffer(whole, (16,), dtype="u1"))',
    "owners": "make(owned_by, owned_by(whole[0:]))",
    "slices of buffers that own slices": "make(lambda last: owned_by(last)[0:], whole[0:])",
}
ENDS = {"dropped": "end = lambda: None", "closed": "end = last.close"}
_END = """
def end_it():
    global last, end
    end()
    last = end = None

threading.stack_size(256 * 1024)
thread = threading.Thread(target=end_it)
thread.start()
thread.join()
assert whole.loans == 0, whole.loans
assert whole.close().name == "DONE"
live = _counters.live()
assert not live.get("buffers"), live
print("ended")
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_long_chain_ends(chain, end):
    done = run_child(f"{_START}\nlast = {CHAINS[chain]}\n{ENDS[end]}\n{_END}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


@pytest.mark.parametrize("chain", CHAINS)
def test_a_long_chain_in_a_cycle_ends(chain):
    code = f"""{_START}
import gc
class Node: pass
node = Node()
node.node, node.last = node, {CHAINS[chain]}
del node
gc.collect()
assert whole.loans == 0, whole.loans
whole.close()
print("ended")
"""
    done = run_child(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
