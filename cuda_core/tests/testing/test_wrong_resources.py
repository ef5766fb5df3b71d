# SPDX-License-Identifier: Apache-2.0
"""The kit finds each of the resources that are wrong on purpose, by the right check and with the right words."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import pytest

from support import child_environment

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.watched  # the faults of two show only when driver calls fail


def faults():
    """Return what the other file says, without loading it here: its classes are tests."""
    import importlib.util

    specification = importlib.util.spec_from_file_location("wrong_resources", HERE / "wrong_resources.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.FAULTS, module.ALL_FAILURES


FAULTS, ALL_FAILURES = faults()


DIED = "died"  # in the place of a check: what the process said that a resource has ended


@pytest.fixture(scope="module")
def found(tmp_path_factory, driver_name):
    """Run the kit over all of them in processes of their own; return class -> check -> what it says.

    On a device a wrong resource can end the process or leave a context that answers every call with an error, so each
    has a process there.
    """
    folder = tmp_path_factory.mktemp("wrong")
    shutil.copy(HERE / "wrong_resources.py", folder)
    found = {name: {} for name in FAULTS}
    runs = [None] if driver_name == "sim" else FAULTS
    for alone in runs:
        run = run_the_kit(
            folder, driver_name, f"wrong_resources.py::{alone}" if alone else "wrong_resources.py"
        )
        if alone and run.returncode < 0:
            found[alone] = {DIED: [run.stdout[-3000:] + run.stderr]}
            continue
        assert run.returncode == (1 if alone is None or FAULTS[alone][0] else 0), (
            run.stdout[-3000:] + run.stderr
        )
        for case in xml.etree.ElementTree.parse(folder / "found.xml").iter("testcase"):
            of_class = found[case.get("classname").rpartition(".")[2]]
            check = case.get("name").partition("[")[0]
            for failure in (*case.iter("failure"), *case.iter("error")):
                of_class.setdefault(check, []).append(failure.text)
            of_class.setdefault("", []).append(check)
    return found


def run_the_kit(folder, driver_name, chosen):
    driver = "sim" if driver_name == "sim" else "watched"
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", chosen, "-p", "cuda_core_pytest"),
            *(f"--memory-driver={driver}", "--junitxml=found.xml", "-p", "no:cacheprovider", "-W", "ignore"),
            *("-o", "faulthandler_timeout=300"),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        cwd=folder,
        env=child_environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        check=False,
    )


@pytest.mark.parametrize("name", FAULTS)
def test_the_kit_finds_it(found, name):
    said, checks = FAULTS[name]
    failed = dict(found[name])
    if DIED in failed:
        assert ALL_FAILURES in checks, (
            failed
        )  # what breaks memory that is in use may end the process on a device
        return
    assert len(failed.pop("")) > 25, "the checks have run"
    if not checks:
        assert failed == {}
        return
    messages = failed[checks[0]]
    assert any(said in message for message in messages), messages
    assert all("seen: " in message for message in messages), messages
    if ALL_FAILURES not in checks:
        assert set(failed) == set(checks)


def test_a_free_that_was_asked_and_raised_is_told_as_that(found):
    """Of ``test_each_end_asks_once`` where nobody hears what ``deallocate`` raises: when a buffer is dropped."""
    messages = found["TestTakesNoStream"]["test_each_end_asks_once"]
    dropped = [message for message in messages if "seen: drop: " in message]
    assert len(dropped) == 1
    assert "drop: freed were [], and should have been [(" in dropped[0]
    assert "; deallocate raised TypeError for 0x" in dropped[0]


def test_where_a_resource_hangs_in_the_collector_is_told(found):
    """Its author sees the line that waits for the lock."""
    (message,) = found["TestHoldsALock"]["test_the_collector_in_the_middle"]
    assert "seen: it hangs, exit code 1" in message
    assert "wrong_resources.py" in message.partition("seen: ")[2]
    assert "in deallocate" in message.partition("seen: ")[2]


def test_the_machine_finds_what_the_plain_checks_find(tmp_path, driver_name):
    """Alone: behind a check that has failed it is skipped."""
    shutil.copy(HERE / "wrong_resources.py", tmp_path)
    run = run_the_kit(tmp_path, driver_name, "wrong_resources.py::TestOverlaps::test_any_order_of_operations")
    assert run.returncode == 1, run.stdout
    assert "buffers that are open at once have no byte in common" in run.stdout


def test_there_are_more_than_twelve_and_each_has_its_own_reason():
    wrong = {name: said for name, (said, _) in FAULTS.items() if said}
    assert len(wrong) >= 12
    assert len(set(wrong.values())) == len(wrong)
