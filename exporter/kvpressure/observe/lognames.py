"""Which files the names and patterns of ``log.path`` mean now."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kvpressure.observe.logfile import Ident

_COMPRESSED = frozenset({".gz", ".zst", ".xz", ".bz2", ".lz4"})


class Named(NamedTuple):
    """
    A file that has a name.

    Args:
        name: the first one of them.
        ident: the file.
        size: its bytes.
        written: when it was last written to, in seconds since 1970 by the clock of its file system.
    """

    name: str
    ident: Ident
    size: int
    written: float


def named(patterns: Sequence[str]) -> tuple[list[Named], list[str]]:
    """
    Look for files. Compressed ones are what a rotation leaves behind, and none of them.

    Returns:
        The files, each once, those written to last first; and the names and patterns that mean no file.
    """
    found: dict[Ident, Named] = {}
    missing = []
    for pattern in patterns:
        # pathlib's own does not take a pattern that begins at the root.
        names = sorted(glob.glob(pattern, recursive=True)) if is_pattern(pattern) else [pattern]  # noqa: PTH207
        known = [(name, status) for name in names if (status := _status(name)) is not None]
        if not known:
            missing.append(pattern)
        for name, status in known:
            ident = (status.st_dev, status.st_ino)
            found.setdefault(ident, Named(name, ident, status.st_size, status.st_mtime))
    return sorted(found.values(), key=lambda file: file.written, reverse=True), missing


def is_pattern(path: str) -> bool:
    """Whether it is a pattern of names, and not a name."""
    return glob.has_magic(path)


def ident_of(name: str) -> Ident | None:
    """The file behind a name; None where there is none."""
    status = _status(name)
    return None if status is None else (status.st_dev, status.st_ino)


def _status(name: str) -> os.stat_result | None:
    if Path(name).suffix in _COMPRESSED:
        return None
    try:
        return Path(name).stat()
    except (OSError, ValueError):
        return None
