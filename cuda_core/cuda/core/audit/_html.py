# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML page: style, script and data in one file, so that it opens without a network."""

from __future__ import annotations

import html
import json
from pathlib import Path

__all__ = ["page_of"]

_FOLDER = Path(__file__).resolve().parent


class _Numbers(dict):
    """Gives each text or tuple a number, in the order of appearance."""

    def __missing__(self, key):
        self[key] = number = len(self)
        return number


def _microseconds(seconds):
    return None if seconds is None else round(seconds * 1e6, 1)


def data_of(report) -> dict:
    """Return what the page shows, with each text and each stack only once."""
    texts, stacks = _Numbers(), _Numbers()
    texts[""]
    stacks[()]
    lives = [
        [
            one.serial,
            one.address,
            one.size,
            one.resource,
            texts[one.ending],
            _microseconds(one.begun),
            _microseconds(one.ended),
            texts[one.thread],
            stacks[one.origin],
            [item for time, state in one.states for item in (_microseconds(time), texts[state])],
            [
                item
                for step in one.steps
                for item in (_microseconds(step.time), texts[step.thread], texts[step.text])
            ],
            one.steps_left_out,
            one.loans,
            one.failures,
            one.source,
            one.taker,
        ]
        for one in report.allocations
    ]
    files = _Numbers()
    frames = [
        [[files[frame.file], frame.line, texts[frame.function], int(frame.own)] for frame in stack]
        for stack in stacks
    ]
    return {
        "program": report.program,
        "pid": report.pid,
        "python": report.python,
        "version": report.version,
        "started": report.started,
        "end": _microseconds(report.seconds),
        "count": report.count,
        "size": report.size,
        "peak": report.peak,
        "peakTime": _microseconds(report.peak_time),
        "leftOut": report.left_out,
        "leftOutUntil": _microseconds(report.left_out_until),
        "lostEvents": report.lost_events,
        "lostLoans": report.lost_loans,
        "resources": [[str(one), one.count, one.size, one.peak, one.live] for one in report.resources],
        "lives": lives,
        "stacks": frames,
        "texts": list(texts),
        "files": list(files),
    }


def page_of(report) -> str:
    """Return the page."""
    # A text of the program may hold anything; within a script only the beginning of a tag could end it.
    data = json.dumps(data_of(report), separators=(",", ":")).replace("<", "\\u003c")
    page = (_FOLDER / "_page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(f"Memory audit: {report.program}"),
        "STYLE": (_FOLDER / "_page.css").read_text(encoding="utf-8"),
        "SCRIPT": (_FOLDER / "_page.js").read_text(encoding="utf-8"),
        "DATA": data,
    }
    before, *rest = page.split("@@")
    return before + "".join(parts[part] if number % 2 == 0 else part for number, part in enumerate(rest))
