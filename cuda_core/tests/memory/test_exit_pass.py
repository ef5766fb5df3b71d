# SPDX-License-Identifier: Apache-2.0
"""``at_exit`` of resources: called for those that live, and nothing is kept of those that do not."""

import gc
import sys

from cuda.core import MemoryResource
from cuda.core._memory import _exit_pass
from support import child_output


class Telling(MemoryResource):
    def at_exit(self):
        pass


class Unhashable(Telling):
    __hash__ = None

    def __eq__(self, other):
        raise ZeroDivisionError("compared")


def test_nothing_is_kept_of_a_resource_that_is_gone():
    before = len(_exit_pass._resources)
    kept = [Telling(), Unhashable()]
    for _ in range(1000):
        Telling()
        Unhashable()
    gc.collect()
    assert len(_exit_pass._resources) == before + len(kept)
    del kept
    gc.collect()
    assert len(_exit_pass._resources) == before
    blocks = sys.getallocatedblocks()
    for _ in range(1000):
        Telling()
    assert sys.getallocatedblocks() - blocks < 100


def test_those_that_live_are_told_the_youngest_first():
    output = child_output(
        """
from cuda.core import MemoryResource
class Telling(MemoryResource):
    def __init__(self, name):
        self.name = name
    def at_exit(self):
        print(self.name)
        if self.name == "second":
            globals()["late"] = Telling("made meanwhile")
first, gone, second, third = (Telling(name) for name in ("first", "gone", "second", "third"))
del gone
"""
    )
    assert output.split("\n") == ["third", "second", "made meanwhile", "first", ""]
