# SPDX-License-Identifier: Apache-2.0
# Made from _stream_handle.pyx by tools/make_stubs.py: change that, and run `make stubs`.
"""The counted C handle of a stream, which buffers hold, and the questions that a release asks it.

A buffer that is freed in the order of a stream must be able to do so after the ``Stream`` object was closed and in
places where no Python may run. So it holds the C handle, which is counted: the driver's stream is destroyed when the
last holder lets go.
"""

def live_stream_handles() -> int:
    """Return the number of stream handles that this package holds, without the two default streams.

    A stream that the driver would not destroy is one of them.
    """
