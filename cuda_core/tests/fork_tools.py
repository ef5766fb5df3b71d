# SPDX-License-Identifier: Apache-2.0
"""The end of a forked child, and where it is when it does not come."""

import faulthandler
import os
import re
import signal
import sys
import time

_WORD = 8


def show_where_it_hangs():
    """Let this process and what it forks print where their Python is when they get SIGUSR1, also inside C code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)


def end_of(pid, seconds):
    """Return the exit code of a child; tell where it is, and end it, if it does not end in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGUSR1)  # silent before the first Python of the child: then the stack below tells
    time.sleep(0.5)
    text = f"the child hangs in\n{native_stack(pid)}"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit(text)


def native_stack(pid):
    """Say what a child waits for in the kernel, and which code has left return addresses on its stack."""
    with open(f"/proc/{pid}/status") as file:
        lines = [line.strip() for line in file if line.startswith(("State", "Threads"))]
    try:
        with open(f"/proc/{pid}/syscall") as file:
            numbers = file.read().split()
        lines.append(f"system call {' '.join(numbers)}")
        lines += _code_on_stack(pid, int(numbers[-2], 16), int(numbers[-1], 16))
    except (OSError, IndexError, ValueError) as error:
        lines.append(f"its stack cannot be read: {error!r}")
    return "\n".join(lines)


def _code_on_stack(pid, stack, here):
    code = []  # first and last address, offset, file
    bottom = 0
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            found = re.match(r"(\w+)-(\w+) (\S+) (\w+) \S+ \d+\s*(.*)", line)
            begin, end = int(found[1], 16), int(found[2], 16)
            if begin <= stack < end:
                bottom = end
            if "x" in found[3]:
                code.append((begin, end, int(found[4], 16), found[5] or "code without a file"))
    with open(f"/proc/{pid}/mem", "rb") as file:
        file.seek(stack)
        content = file.read(min(bottom - stack, 1 << 15))
    words = [here]
    words += [int.from_bytes(content[at : at + _WORD], sys.byteorder) for at in range(0, len(content), _WORD)]
    return [
        f"{path}+{word - begin + offset:#x}"
        for word in words
        for begin, end, offset, path in code
        if begin <= word < end
    ]
