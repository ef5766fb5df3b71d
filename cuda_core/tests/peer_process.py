# SPDX-License-Identifier: Apache-2.0
"""Another process, started with ``multiprocessing``, that calls functions of `peer_functions` for a test.

What is sent goes through the pickles of ``multiprocessing``, as in any program. What the functions keep stays in their
module, in that process.
"""

import multiprocessing
import traceback

import peer_functions

JOIN_SECONDS = 60


class PeerFailed(Exception):
    """A function has raised in the other process; the text is its traceback."""


def _serve(pipe):
    """Answer calls until told to end. Runs in the other process."""
    while True:
        message = pipe.recv()
        if message is None:
            return
        name, arguments = message
        del message
        try:
            answer = True, getattr(peer_functions, name)(*arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        del arguments
        pipe.send(answer)
        del answer


def _serve_first(pipe, name, arguments):
    """Call one function with what has come with the start of the process."""
    pipe.send((True, getattr(peer_functions, name)(*arguments)))
    del arguments
    _serve(pipe)


class Peer:
    """A process. ``call(function, ...)`` returns what the function has returned there."""

    def __init__(self, method="spawn", first=None, *arguments):
        context = multiprocessing.get_context(method)
        self.pipe, theirs = context.Pipe()
        target, args = (_serve, (theirs,)) if first is None else (_serve_first, (theirs, first, arguments))
        self.process = context.Process(target=target, args=args)
        self.process.start()
        theirs.close()
        self.first = self._answer() if first is not None else None

    def call(self, name, *arguments):
        self.pipe.send((name, arguments))
        return self._answer()

    def ask(self, name, *arguments):
        """Begin a call; `_answer` gets what it returns."""
        self.pipe.send((name, arguments))

    def _answer(self):
        if not self.pipe.poll(JOIN_SECONDS):
            raise TimeoutError("the other process does not answer")
        good, value = self.pipe.recv()
        if not good:
            raise PeerFailed(value)
        return value

    def end(self):
        """Let the process end in the normal way; return its exit code."""
        self.pipe.send(None)
        self.pipe.close()
        self.process.join(JOIN_SECONDS)
        code = self.process.exitcode
        self.process.close()
        return code

    def kill(self):
        self.process.kill()
        self.process.join(JOIN_SECONDS)
        self.pipe.close()
        self.process.close()
