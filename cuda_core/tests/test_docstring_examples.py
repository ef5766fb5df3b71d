# SPDX-License-Identifier: Apache-2.0
"""The examples in docstrings do what they say."""

import doctest
import gc
import re

import numpy
import pytest

import cuda.core
import cuda.core.adaptors
import cuda.core.graph
import cuda.core.utils
from cuda.core import DeviceMemoryResource, LegacyPinnedMemoryResource
from cuda.core._memory import _left_behind
from docstrings import public_members

EXAMPLES = [
    member
    for member in public_members()
    # What goes on with the result of a line that is not run cannot run either.
    if "+SKIP" not in member.docstring.sections.get("Examples", "").split("\n")[0]
    and any(
        ">>>" in line and "+SKIP" not in line
        for line in member.docstring.sections.get("Examples", "").splitlines()
    )
]
MIB = 1 << 20


def names_for_examples(device, text):
    """Return what the reference promises its examples: all public names, a stream, memory resources, a buffer.

    An example that makes a ``buffer`` itself gets none, as it may look at what is live.
    """
    _left_behind.entries.clear()  # what other tests have left on purpose, and freed behind the package's back
    names = {"numpy": numpy}
    for module in (cuda.core, cuda.core.adaptors, cuda.core.graph, cuda.core.utils):
        names |= {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}
    stream = device.create_stream()
    mr = DeviceMemoryResource(device)
    if not re.search(r"^>>> buffer =", text, re.M) or "memory_report" not in text:
        names["buffer"] = mr.allocate(MIB, stream=stream)
    return names | {
        "device": device,
        "stream": stream,
        "mr": mr,
        "pinned": LegacyPinnedMemoryResource(),
    }


def test_most_names_have_an_example_that_runs():
    assert len(EXAMPLES) > 90


@pytest.mark.parametrize("member", EXAMPLES, ids=lambda member: member.place)
def test_an_example_does_what_it_says(member, device):
    text = member.docstring.sections["Examples"]
    example = doctest.DocTestParser().get_doctest(
        text, names_for_examples(device, text), member.place, None, 0
    )
    said = []
    failed, tried = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert failed == 0, "".join(said)
    assert tried
    gc.collect()
    device.sync()
