# SPDX-License-Identifier: Apache-2.0
# Made from _graph_place.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""What is known of a graph whose memory somebody here has, or that is built here; and which allocation a buffer is.

It is counted, and outlives the driver's graph: a buffer may be closed after it.
"""

def live_graphs() -> int:
    """Return the number of graphs of which something is known: built here, or with memory that somebody here has."""
