# SPDX-License-Identifier: Apache-2.0
"""What to record and where to write it: the arguments of ``record``, and the text of ``CUDA_CORE_AUDIT``."""

from __future__ import annotations

import os
import re

import attrs

from cuda.core._error_text import shown

__all__ = ["VARIABLE", "Settings", "parse", "to_text"]

VARIABLE = "CUDA_CORE_AUDIT"


def _path(value):
    return None if value is None else os.path.abspath(os.fspath(value))


def _positive(instance, attribute, value):
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{attribute.name} must be an integer, got {type(value).__name__}: {shown(value)}")
    if value < 1:
        raise ValueError(f"{attribute.name} must be at least 1, got {value}")


def _writable(instance, attribute, value):
    if value is None:
        return
    folder = os.path.dirname(value)
    if not os.path.isdir(folder):
        raise ValueError(f"{attribute.name}={value!r}: there is no folder {folder!r}")
    if os.path.isdir(value):
        raise ValueError(f"{attribute.name}={value!r} is a folder")
    if not os.access(value if os.path.exists(value) else folder, os.W_OK):
        raise ValueError(f"{attribute.name}={value!r} cannot be written")


@attrs.frozen
class Settings:
    """What to record and where to write it.

    Attributes
    ----------
    text, json, html : str or None
        Files to write. ``%p`` in the name stands for the number of the process.
    say : bool
        Write the text to standard error.
    say_findings : bool
        The same, but only where something was found.
    depth : int
        Frames of each stack that are kept.
    limit : int
        Allocations that are kept after they have ended.
    all_frames : bool
        Show every frame in the text.
    """

    text: str | None = attrs.field(default=None, converter=_path, validator=_writable)
    json: str | None = attrs.field(default=None, converter=_path, validator=_writable)
    html: str | None = attrs.field(default=None, converter=_path, validator=_writable)
    say: bool = False
    say_findings: bool = False
    depth: int = attrs.field(default=24, validator=_positive)
    limit: int = attrs.field(default=100_000, validator=_positive)
    all_frames: bool = False


def parse(text: str) -> Settings | None:
    """Read the text of ``CUDA_CORE_AUDIT``.

    Returns
    -------
    Settings or None
        None where the text is empty or ``0``: no recording.

    Raises
    ------
    ValueError
        If it says something else than it may.
    """
    if text.strip() in ("", "0"):
        return None
    options = {}
    for part in re.split(r"(?<!,),(?!,)", text):
        name, equals, value = part.replace(",,", ",").strip().partition("=")
        if not equals and name in ("1", "text"):
            options["say"] = True
        elif not equals and name == "quiet":
            options["say"] = False
        elif not equals and name == "findings":
            options["say_findings"] = True
        elif name in ("text", "json", "html") and value:
            options[name] = value
        elif name in ("depth", "limit") and value.isdecimal():
            options[name] = int(value)
        elif name == "frames" and value in ("own", "all"):
            options["all_frames"] = value == "all"
        else:
            raise ValueError(
                f"{VARIABLE}: {part!r} is none of 1, text, findings, quiet, text=FILE, json=FILE, html=FILE, "
                "depth=NUMBER, limit=NUMBER, frames=own, frames=all (commas between them, two for one in a name)"
            )
    if not {"text", "json", "html", "say", "say_findings"} & set(options):
        options["say"] = True
    try:
        return Settings(**options)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from None


def to_text(settings: Settings) -> str:
    """Return the text that :func:`parse` reads as these settings."""
    parts = ["text"] if settings.say else ["findings"] if settings.say_findings else ["quiet"]
    for name in ("text", "json", "html"):
        if getattr(settings, name) is not None:
            parts.append(f"{name}={getattr(settings, name)}".replace(",", ",,"))
    parts += [f"depth={settings.depth}", f"limit={settings.limit}"]
    if settings.all_frames:
        parts.append("frames=all")
    return ",".join(parts)


def for_children(settings: Settings) -> Settings:
    """Return the settings of processes that this one starts: they do not write to its files, nor say that all is
    well."""
    changes = {"say": False, "say_findings": settings.say or settings.say_findings}
    for name in ("text", "json", "html"):
        path = getattr(settings, name)
        if path is not None and "%p" not in path:
            stem, suffix = os.path.splitext(path)
            changes[name] = f"{stem}.%p{suffix}"
    return attrs.evolve(settings, **changes)
