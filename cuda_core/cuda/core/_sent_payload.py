# SPDX-License-Identifier: Apache-2.0
"""A check on what the driver wrote for another process, so that damage on the way is found before the driver reads it.

Drivers believe such bytes. Recorded on an H200 (580.159): one wrong byte in the place that a pool's pointer names, or
in an event's handle, ends the process. The check is against accidents. It is no secret: whoever can send a pickle to a
process can make it run anything.
"""

import binascii

from cuda.core._error_text import shown


def check_of(kind: str, payload: bytes, *rest: int) -> int:
    """Return the check on a payload and the numbers that go with it."""
    return binascii.crc32(repr((kind, payload, *map(int, rest))).encode())


def ensure_as_sent(kind: str, check: object, payload: bytes, *rest: int) -> None:
    """Raise ValueError unless the payload and the numbers are those that the check was made of."""
    if type(check) is not int or check != check_of(kind, payload, *rest):
        raise ValueError(
            f"the descriptor of the {kind} is not what its exporter has sent: the check {shown(check)} does not fit it"
        )
