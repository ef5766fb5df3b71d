# SPDX-License-Identifier: Apache-2.0
"""The report in plain text: first what is wrong, by the place in the program that it comes from."""

from __future__ import annotations

from cuda.core._memory._text_table import bytes_text, table

__all__ = ["text_of"]

_PLACES = 20  # of one finding; the largest
_FRAMES = 8

_FINDINGS = (
    ("leaked", "LEAKED: never returned"),
    ("detached", "DETACHED and never adopted, nor declared as handed over"),
    ("lost", "LOST with their context"),
    ("waiting", "WAITING: closed, and not back when the recording ended"),
    ("failed", "FAILED: an attempt to return them failed"),
    ("collected", "COLLECTED: returned by a collection, and closed by nobody"),
)


def is_held(one) -> bool:
    """Tell whether a buffer was closed, and is not back because of its loans."""
    return one.ending == "open" and bool(one.loans) and bool(one.states) and one.states[-1][1] == "LENT"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def text_of(report, all_frames):
    """Return the text of a report."""
    lines = [
        f"cuda.core audit of {report.program} (process {report.pid})",
        f"{counted(report.count, 'allocation')}, {bytes_text(report.size)} in all, at most {bytes_text(report.peak)} "
        f"at one moment, in {report.seconds:.3f} s",
    ]
    if report.count:
        rows = [
            (
                str(one),
                one.count,
                bytes_text(one.size),
                bytes_text(one.peak),
                bytes_text(one.live) if one.live else "-",
            )
            for one in report.resources
        ]
        lines += ["", *table(("resource", "count", "bytes", "most at once", "not back"), rows)]
    for name, title in _FINDINGS:
        found = getattr(report, name)
        if found:
            lines += [
                "",
                f"{title}: {counted(len(found), 'allocation')}, {bytes_text(sum(o.size for o in found))}",
            ]
            lines += _by_place(report, found, all_frames)
    pairs = report.shared
    if pairs:
        lines += ["", f"TWO OWNERS of one address at the same time: {counted(len(pairs), 'pair')}"]
        for one, other in pairs[:_PLACES]:
            lines.append(
                f"  #{one.serial} and #{other.serial} at {one.address:#x} of {report.resources[one.resource]}"
            )
            frames = other.origin if all_frames else other.own_origin
            lines += (f"      {frame}" for frame in frames[:_FRAMES])
        if len(pairs) > _PLACES:
            lines.append(f"  and {counted(len(pairs) - _PLACES, 'more pair')}")
    if report.is_clean and not report.failed:
        lines += ["", "nothing leaked"]
    if report.left_out:
        lines += [
            "",
            f"Left out to bound the memory: {counted(report.left_out, 'allocation')} that had ended, the last of them "
            f"at {report.left_out_until:.3f} s. The sums above hold for everything.",
        ]
    if report.lost_events or report.lost_loans:
        lines += [
            "",
            f"Too much happened at once: {counted(report.lost_events, 'change')} of ownership and "
            f"{counted(report.lost_loans, 'change')} of loans were not recorded.",
        ]
    return "\n".join(lines) + "\n"


def _by_place(report, found, all_frames):
    places = {}
    for one in found:
        frames = one.origin if all_frames else one.own_origin
        places.setdefault((frames, one.resource, one.ending, is_held(one)), []).append(one)
    ordered = sorted(places.items(), key=lambda item: (-sum(one.size for one in item[1]), item[1][0].serial))
    for (frames, resource, ending, held), ones in ordered[:_PLACES]:
        size = ones[0].size
        if any(one.size != size for one in ones):
            size = None
        total = bytes_text(sum(one.size for one in ones))
        amount = (
            total
            if len(ones) == 1
            else f"{len(ones):,} x {bytes_text(size)}"
            if size is not None
            else f"{len(ones):,} allocations, {total}"
        )
        numbers = ", ".join(f"#{one.serial}" for one in ones[:4]) + (", ..." if len(ones) > 4 else "")
        lent = sum(one.loans for one in ones)
        words = [f"{amount} of {report.resources[resource]}", numbers]
        if held:
            words.append(f"closed, held by {counted(lent, 'loan')}")
        else:
            words.append(ending)
            if lent:
                words.append(counted(lent, "loan") + " open")
        yield "  " + "; ".join(words)
        yield from (f"      {frame}" for frame in frames[:_FRAMES])
        if len(frames) > _FRAMES:
            yield f"      and {len(frames) - _FRAMES} more frames"
        if not frames:
            yield "      where it was allocated is not known"
    if len(ordered) > _PLACES:
        yield f"  and {counted(len(ordered) - _PLACES, 'more place')}"
