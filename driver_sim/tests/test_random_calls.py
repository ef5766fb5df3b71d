# SPDX-License-Identifier: Apache-2.0
"""Random sequences of calls get the answers that an H200 has given."""

from pathlib import Path

import pytest

import random_calls
from random_sequences import sequence

RECORDS = random_calls.read(Path(__file__).parent / "driver_facts" / "h200_random.jsonl.xz")


@pytest.fixture(scope="module")
def team():
    workers = random_calls.Team(library=random_calls.installed_library())
    yield workers
    workers.stop()


def difference(record, team):
    calls, answers = record["calls"], record["answers"]
    return random_calls.difference(calls, answers, team.answers(calls, random_calls.skipped(calls, answers)))


def test_recorded_sequences(team):
    differing = random_calls.in_parallel(
        lambda record: (record["seed"], difference(record, team)), RECORDS, threads=2, seconds=300
    )
    assert len(differing) == len(RECORDS) == 2400
    assert [found for found in differing if found[1] is not None] == []


def test_a_changed_answer_is_noticed(team):
    record = next(r for r in RECORDS if r["answers"][-1][0] == "SUCCESS")
    changed = {**record, "answers": [*record["answers"][:-1], ["INVALID_VALUE"]]}
    assert difference(changed, team) == len(record["calls"]) - 1


def test_shrinking_keeps_what_matters():
    calls = sequence(5)
    needed = {calls[3][0], calls[-1][0]}
    shorter = random_calls.shrink(calls, lambda some: needed <= {call[0] for call in some}, seconds=60)
    assert {call[0] for call in shorter} == needed


@pytest.mark.parametrize("seed", range(3))
def test_a_seed_gives_one_sequence(seed, team):
    assert sequence(seed) == sequence(seed)
    assert team.answers(sequence(seed)) == team.answers(sequence(seed))
