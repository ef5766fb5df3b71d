# SPDX-License-Identifier: Apache-2.0
# Made from _pool_handle.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The counted C handle of a memory pool, which resources and buffers hold.

A pool must outlive the resource that made it: its buffers stay valid when the resource is closed. So each of them holds
the handle, and the driver's pool is destroyed when the last holder has let go and all frees have run, in places where
no Python may run too. Only pools that were made here have a handle; those of a device belong to everybody.

The calls on pools count among those that a capture forbids. They are made with the thread's capture mode exchanged for
RELAXED, so that they disturb nobody's capture.
"""

def live_pools() -> int:
    """Return the number of pools that this package has made and not destroyed."""
