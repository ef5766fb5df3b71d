# SPDX-License-Identifier: Apache-2.0
# Made from _import_table.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""Pointers of other processes, counted: the driver gives one address for each, and the first free ends it for all.

Each buffer that was imported has a share of its address. The last share frees, behind the streams of all of them. A
pointer that is open is not imported again: for memory of a device the driver would give the same address, for memory of
the host it refuses (recorded on an H200). While a free is pending it gives the address once more, as a new import that
this free does not end (recorded as well).

Imports and frees go through one mutex, so that no import returns an address that is just being freed. It is taken
without the GIL and held for driver calls that wait for nothing; nothing that may need the GIL happens under it.
"""

def live_imports() -> int:
    """Return how many addresses of other processes are open here."""
