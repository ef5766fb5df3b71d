# SPDX-License-Identifier: Apache-2.0
"""Host, the place that is no device: equality, hash, text, pickling, and what it refuses."""

import copy
import pickle
import threading

import pytest

from cuda.core import Device, Host
from support import child_output, run_child

PLACES = {
    "any": (lambda: Host(), "Host()", None, False),
    "node 0": (lambda: Host(0), "Host(numa_id=0)", 0, False),
    "node 3": (lambda: Host(numa_id=3), "Host(numa_id=3)", 3, False),
    "current": (lambda: Host.numa_current(), "Host.numa_current()", None, True),
    "current by keyword": (lambda: Host(is_numa_current=True), "Host.numa_current()", None, True),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_says_what_it_is(name):
    make, text, numa_id, current = PLACES[name]
    place = make()
    assert repr(place) == text
    assert place.numa_id == numa_id
    assert place.is_numa_current is current
    assert eval(repr(place), {"Host": Host}) is place


def test_a_place_may_be_made_while_one_is_made():
    """By a signal handler, a finalizer or the hash of a number, on the same thread: a lock would wait for itself."""
    inner = []

    class Number(int):
        def __hash__(self):
            inner.append(Host(5))
            return hash(int(self))

    assert Host(Number(4)) is Host(4)
    assert inner
    assert set(inner) == {Host(5)}


@pytest.mark.parametrize("name", PLACES)
def test_equal_places_are_one_object_everywhere(name):
    make = PLACES[name][0]
    place = make()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(make()))
    thread.start()
    thread.join()
    assert make() is place
    assert seen == [place]
    assert seen[0] is place
    assert copy.copy(place) is place
    assert copy.deepcopy([place])[0] is place
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(place, protocol)) is place


def test_different_places_are_different():
    places = [Host(), Host(0), Host(1), Host.numa_current()]
    assert len({*places}) == len({hash(place) for place in places}) == 4
    for index, place in enumerate(places):
        assert [other == place for other in places] == [number == index for number in range(4)]


def test_a_place_equals_nothing_else(device):
    for other in (0, None, "Host()", (), Device(0), object()):
        assert Host() != other
        assert Host(0) != other
        assert other not in {Host(), Host(0)}


def test_places_have_no_order():
    with pytest.raises(TypeError):
        Host() < Host(0)  # noqa: B015


def test_many_threads_make_one_object():
    barrier, seen = threading.Barrier(8), []

    def make():
        barrier.wait()
        seen.extend([Host(1000 + number) for number in range(200)])

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(place) for place in seen}) == 200


@pytest.mark.parametrize("wrong", [-1, True, False, 1.0, "0", b"0", [0], Host])
def test_what_is_no_node_is_refused_by_value(wrong):
    with pytest.raises(ValueError, match="numa_id must be a non-negative int, got") as caught:
        Host(wrong)
    assert repr(wrong) in str(caught.value)


def test_a_node_cannot_be_named_and_current():
    with pytest.raises(ValueError, match=r"mutually exclusive.*numa_id=0"):
        Host(0, is_numa_current=True)
    with pytest.raises(TypeError):
        Host(0, True)
    with pytest.raises(TypeError):
        Host(node=0)


def test_a_place_cannot_be_changed():
    place = Host()
    for name in ("numa_id", "is_numa_current", "anything"):
        with pytest.raises(AttributeError):
            setattr(place, name, 1)


def test_a_subclass_has_objects_of_its_own():
    class Place(Host):
        pass

    assert type(Place(0)) is Place
    assert Place(0) is Place(0)
    assert type(Host(0)) is Host
    assert Place(0) == Host(0)
    assert hash(Place(0)) == hash(Host(0))


def test_a_place_needs_no_driver(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("not a library")
    code = "from cuda.core import Host\nprint(Host(1), Host.numa_current())"
    import os

    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    assert child_output(code, environment=environment) == "Host(numa_id=1) Host.numa_current()\n"


def test_another_process_gets_the_same_place():
    code = "import pickle, sys\nprint(pickle.loads(bytes.fromhex(sys.argv[1])))"
    child = run_child(code, pickle.dumps([Host(), Host(2), Host.numa_current()]).hex())
    assert child.stdout == "[Host(), Host(numa_id=2), Host.numa_current()]\n", child.stderr
