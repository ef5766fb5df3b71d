# SPDX-License-Identifier: Apache-2.0
"""Bring the design pages into the documentation's folder, with what Sphinx reads differently from GitHub."""

import re
from pathlib import Path

# Folders of short pages that the design's front page links as folders.
FOLDERS = {
    "decisions": ("Decisions", "One short record for each choice that could have gone another way."),
    "evidence": ("Evidence", "What was run and measured on a GPU, dated."),
}

PICTURES = ("*.png", "*.svg")


def adapted(text):
    """Return a page as Sphinx wants it: links to pages only, and a diagram's source as text."""
    text = re.sub(r"\]\((\w+)/\)", r"](\1/index.md)", text)
    text = re.sub(r"\]\(README\.md\)", "](index.md)", text)
    return text.replace("```mermaid", "```text")


def in_order_of_reading(text, source):
    """Return the pages that a front page links, in its order, and then those that it forgets."""
    linked = dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md\)", text))
    forgotten = [page.stem for page in sorted(source.glob("*.md")) if page.stem not in (*linked, "README")]
    return "\n".join([*linked, *forgotten])


def contents(pattern):
    return f"\n```{{toctree}}\n:maxdepth: 1\n:glob:\n:hidden:\n\n{pattern}\n```\n"


def write(path, text):
    """Write a file where its text has changed: Sphinx reads again what is newer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def bring(source, target):
    """Copy all pages below ``source`` to ``target``, with a front page for each folder, and remove what is gone."""
    pages = {}
    for page in sorted(source.rglob("*.md")):
        name = page.relative_to(source)
        text = adapted(page.read_text(encoding="utf-8"))
        if name == Path("README.md"):
            name = Path("index.md")
            text += contents(in_order_of_reading(text, source))
        pages[name] = text
    for folder, (title, says) in FOLDERS.items():
        if (source / folder).is_dir():
            pages[Path(folder) / "index.md"] = f"# {title}\n\n{says}\n" + contents("*").replace(
                ":hidden:\n", ""
            )
    for name, text in pages.items():
        write(target / name, text)
    pictures = {
        picture.relative_to(source): picture.read_bytes()
        for kind in PICTURES
        for picture in source.rglob(kind)
    }
    for name, content in pictures.items():
        if not (target / name).exists() or (target / name).read_bytes() != content:
            (target / name).write_bytes(content)
    for old in [old for kind in ("*.md", *PICTURES) for old in target.rglob(kind)]:
        if old.relative_to(target) not in (pages | pictures):
            old.unlink()
