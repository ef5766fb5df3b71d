# SPDX-License-Identifier: Apache-2.0
"""The table of the ownership state machine as a reader sees it: Markdown, and a diagram of the states.

``design/ownership.md`` holds what these functions return; a test compares the two.
"""

from cuda.core._memory._ownership import TABLE, Claim, Event, Loans, Ownership, Rule, Verdict

__all__ = ["diagram_mermaid", "table_markdown"]

# The situations that a buffer can be in, of all pairs of state and claim.
_REACHABLE = {(state, Claim.NONE) for state in Ownership} | {
    (Ownership.OWNED, Claim.RELEASE),
    (Ownership.OWNED, Claim.TRANSFER),
    (Ownership.TRANSFERRED, Claim.RELEASE),
}


def _guard_text(rule: Rule) -> str:
    parts: list[str] = []
    if rule.takers is not None:
        parts.append("to " + " or ".join(t.name for t in rule.takers))
    if rule.sources and rule.claims is not None:
        names = [c.name.lower() for c in rule.claims]
        parts.append(
            "unclaimed"
            if names == ["none"]
            else "claimed for " + " or ".join(n for n in names if n != "none")
        )
        if len(names) > 1 and "none" in names:
            parts[-1] = "unclaimed or " + parts[-1]
    if rule.loans is not Loans.ANY:
        parts.append(rule.loans.value)
    if rule.failed is not None:
        parts.append("failed before" if rule.failed else "not failed")
    if rule.held_by_loans:
        parts.append("held by loans")
    return "; ".join(parts)


def _target_text(rule: Rule) -> str:
    if rule.verdict.value > Verdict.LAST_LOAN.value:
        return "unchanged"
    parts = [rule.to.name if rule.to else "same"]
    if rule.taker:
        parts[0] += f" to {rule.taker.name}"
    if rule.claim not in (None, Claim.NONE):
        parts.append("claimed")
    if rule.set_failed:
        parts.append("failed")
    if rule.set_lost:
        parts.append("lost")
    if rule.loan_change:
        parts.append(f"loans {'+' if rule.loan_change > 0 else '-'} 1")
    return ", ".join(parts)


def table_markdown() -> str:
    """Return the table as Markdown, as it stands in ``design/ownership.md``."""
    lines = ["| from | event | guard | answer | to | effect |", "|---|---|---|---|---|---|"]
    for rule in TABLE:
        sources = (
            "any"
            if len(rule.sources) == len(Ownership)
            else ", ".join(s.name for s in rule.sources) or "(new)"
        )
        lines.append(
            f"| {sources} | {rule.event.value} | {_guard_text(rule)} | {rule.verdict.name} "
            f"| {_target_text(rule)} | {rule.effect} |"
        )
    return "\n".join(lines)


def diagram_mermaid() -> str:
    """Return the transitions between states as a Mermaid state diagram, made from the table."""
    arrows: dict[tuple[str, str], list[str]] = {}

    def add(source: str, target: str, label: str) -> None:
        labels = arrows.setdefault((source, target), [])
        if label not in labels:
            labels.append(label)

    for rule in TABLE:
        if rule.verdict.value > Verdict.LAST_LOAN.value or rule.event is Event.USE:
            continue
        if not rule.sources and rule.to is not None:
            add("[*]", rule.to.name, rule.event.value)
        for source in rule.sources:
            for claim in rule.claims or tuple(Claim):
                before = source.name if claim is Claim.NONE else f"{source.name}_{claim.name}"
                if (source, claim) not in _REACHABLE:
                    continue
                state = rule.to or source
                after_claim = claim if rule.claim is None else rule.claim
                after = state.name if after_claim is Claim.NONE else f"{state.name}_{after_claim.name}"
                if before != after:
                    add(before, after, rule.event.value)
    lines = ["stateDiagram-v2"]
    lines += [f"    {a} --> {b}: {', '.join(labels)}" for (a, b), labels in arrows.items()]
    return "\n".join(lines)
