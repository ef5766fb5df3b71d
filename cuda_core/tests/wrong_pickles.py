# SPDX-License-Identifier: Apache-2.0
"""Pickles with wrong bytes, for the tests of what comes from another process."""

from hypothesis import strategies as st


def damaged(data, form):
    """Return a pickle with up to three places changed, removed, added, or cut off, as ``data`` draws them."""
    form = bytearray(form)
    for _ in range(data.draw(st.integers(1, 3))):
        # Not up to the length: that differs from run to run, as messages name sockets and keys.
        place = data.draw(st.integers(0, 10_000)) % len(form)
        how = data.draw(st.sampled_from(["change", "change", "remove", "insert", "cut"]))
        if how == "change":
            form[place] = data.draw(st.integers(0, 255))
        elif how == "insert":
            form[place:place] = data.draw(st.binary(min_size=1, max_size=8))
        elif len(form) > 2:
            del form[place : place + 1 if how == "remove" else None]
        if not form:
            form = bytearray(b".")
    return bytes(form)
