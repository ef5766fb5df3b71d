# SPDX-License-Identifier: Apache-2.0
"""Write ``docs/moving-from-1.2.2.md`` from ``docs/differences.toml``.

python tools/make_moving_page.py            write it
python tools/make_moving_page.py --check    write nothing; fail if it would change
"""

import sys

import differences_file
import released_package

PAGE = differences_file.FILE.with_name(f"moving-from-{released_package.version()}.md")
HEAD = """\
<!-- Made from differences.toml by tools/make_moving_page.py: change that, and run `make stubs`. -->
# Moving from {version}

A program that was written for the memory layer of cuda-core {version} runs here unchanged, unless it relies on what
this page lists: first {changes} in what is there, then what is new, then what this build does not have. A test compares
each name, signature, default and type with those that were published with {version}. It fails if something differs that
is not on this page, and if something on this page does not differ.
"""
NEW = """\
## What is new

| name | where it is described |
|---|---|
"""
ABSENT = "Not in this build"


def code(names):
    return ", ".join(f"`{name}`" for name in names)


def anchor(title):
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def signature(name, facet, pair):
    """Return a line that shows how a signature or type was and is."""
    before, now = pair
    if facet == "call":
        shown = name.removesuffix(".__init__")
        return f"- `{shown}{before}` is now `{shown}{now}`"
    return f"- `{name}`: `{before}` is now `{now}`"


def section(entry):
    """Return one entry as it stands on the page."""
    lines = [
        f"### {entry.title}",
        "",
        f"**Before:** {entry.was}",
        "",
        f"**Now:** {entry.now}",
        "",
        f"**Why:** {entry.why}",
    ]
    if entry.todo:
        lines += ["", f"**What to do:** {entry.todo}"]
    changed = [
        signature(name, facet, pair)
        for facet, name, pair in entry.interface
        if facet in ("call", "type", "kind")
    ]
    if changed:
        lines += ["", *changed]
    for facet, words in (("added", "New"), ("missing", "Not there")):
        if entry.names(facet):
            lines += ["", f"{words}: {code(entry.names(facet))}."]
    return "\n".join(lines) + "\n"


def page():
    """Return the page."""
    entries = differences_file.read()
    groups = list(dict.fromkeys(entry.group for entry in entries))
    assert groups[-1] == ABSENT
    present = [entry for entry in entries if entry.group != ABSENT]
    parts = [HEAD.format(version=released_package.version(), changes=f"{len(present)} changes")]
    for group in groups[:-1]:
        parts.append(f"## {group}\n")
        parts += [section(entry) for entry in entries if entry.group == group]
    rows = sorted(
        (name, entry.title) for entry in present for name in entry.names("added") if not name.endswith("__")
    )
    parts.append(NEW + "".join(f"| `{name}` | [{title}](#{anchor(title)}) |\n" for name, title in rows))
    parts.append(f"## {ABSENT}\n")
    parts += [section(entry) for entry in entries if entry.group == ABSENT]
    return "\n".join(parts)


def main():
    text = page()
    current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else None
    if text == current:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.name} differs from {differences_file.FILE.name}; run `make stubs`")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE.name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
