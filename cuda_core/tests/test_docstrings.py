# SPDX-License-Identifier: Apache-2.0
"""Every public name says what it means, in numpydoc's form: units, errors, threads, and an example."""

import enum
import inspect
import re
import typing

import attrs
import pytest

from docstrings import SECTIONS, Docstring, public_members

MEMBERS = public_members()
CALLABLES = [member for member in MEMBERS if member.is_callable and not member.refers_to_another]
CLASSES = [member for member in MEMBERS if member.is_class]
PROPERTIES = [member for member in MEMBERS if member.is_property]
# What holds no memory and is used by one call: values of options, exceptions, words for states, protocols.
PLAIN = (enum.Enum, BaseException, typing.Protocol)


def is_plain(member):
    return issubclass(member.value, PLAIN) or (
        attrs.has(member.value) and not member.name.endswith("Options")
    )


THINGS = [member for member in CLASSES if not is_plain(member)]
BYTES = re.compile(r"(^|_)(size|sizes)$")

pytestmark = pytest.mark.sim_only  # says nothing about a driver


def each(members):
    return pytest.mark.parametrize("member", members, ids=lambda member: member.place)


def test_there_is_much_to_look_at():
    assert len(CALLABLES) > 60
    assert len(CLASSES) > 30
    assert len(PROPERTIES) > 80
    assert any(member.name == "DeviceMemoryResource.allocate" for member in CALLABLES), "bases are looked at"


def said_by_its_class(member):
    """Tell whether the class describes an attribute of C, which has no docstring of its own."""
    of = Docstring(inspect.getdoc(member.of) or "") if member.is_property else None
    return of is not None and any(
        member.name.split(".")[1] in names for names, _, _ in of.entries("Attributes")
    )


@each(MEMBERS)
def test_it_says_what_it_is(member):
    if not member.docstring.text and said_by_its_class(member):
        return
    assert re.match(r"\S.*[.:]$", member.docstring.summary, re.S), member.docstring.summary


@each(MEMBERS)
def test_its_sections_are_those_of_numpydoc_in_order(member):
    order = member.docstring.order
    assert set(order) <= set(SECTIONS)
    assert order == sorted(order, key=SECTIONS.index)
    assert len(order) == len(set(order))
    assert [name for name, text in member.docstring.sections.items() if not text.strip()] == []


@each(CALLABLES)
def test_its_parameters_are_those_of_its_signature(member):
    described = [name for names, _, _ in member.docstring.entries("Parameters") for name in names]
    assert described == member.signature()


@each(CALLABLES + CLASSES)
def test_each_parameter_has_a_type_and_a_meaning(member):
    for section in ("Parameters", "Attributes"):
        for names, kind, meaning in member.docstring.entries(section):
            assert meaning, names
            assert kind or section == "Attributes", names


@each(CALLABLES + CLASSES)
def test_each_size_has_a_unit(member):
    for section in ("Parameters", "Attributes"):
        for names, _, meaning in member.docstring.entries(section):
            if any(BYTES.search(name) for name in names):
                assert "byte" in meaning.lower(), names


@each(PROPERTIES)
def test_a_property_begins_with_its_type(member):
    if not member.docstring.text and said_by_its_class(member):
        return
    assert re.match(r"[\w.\[\], ]+(\(.*?\))?: \S", member.docstring.summary), member.docstring.summary
    if BYTES.search(member.name):
        assert "byte" in member.docstring.text


@each(CALLABLES)
def test_what_can_be_refused_says_how(member):
    if member.signature():
        assert "Raises" in member.docstring.sections
    for names, _, meaning in member.docstring.entries("Raises"):
        assert all(re.fullmatch(r"\w+", name) for name in names), names
        assert meaning, names


@each([member for member in THINGS if not member.name.endswith("Options")])
def test_a_class_says_what_threads_may_do(member):
    assert re.search(r"\bthreads?\b", member.docstring.sections.get("Notes", ""))


@each([member for member in CALLABLES if member.of is None])
def test_a_function_says_what_threads_may_do(member):
    assert re.search(r"\bthreads?\b", member.docstring.sections.get("Notes", ""))


@each([member for member in CALLABLES if "stream" in (member.signature() or ())])
def test_what_takes_a_stream_says_what_it_orders(member):
    (said,) = [meaning for names, _, meaning in member.docstring.entries("Parameters") if "stream" in names]
    assert re.search(r"order|wait|behind|stream", said)


@each(CALLABLES + THINGS)
def test_it_has_an_example(member):
    assert ">>>" in member.docstring.sections.get("Examples", "")
