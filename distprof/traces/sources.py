"""What do the paths that a user gave hold? File types are detected from content, never from the name alone."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from distprof.errors import DataError
from distprof.storage.safe_open import SQLITE_MAGIC, USUAL_LIMITS, begins_with, open_folder
from distprof.traces.kineto.json_stream import BOM
from distprof.traces.kineto.json_text import SPACE, JsonText
from distprof.traces.kineto.read_kineto import SNIFF_BYTES, looks_like_kineto

Kind = Literal["run", "kineto", "nsys", "nsys-rep"]
CAPTURES = (".nsys-rep", ".qdrep")
MAX_FILES = 100_000
CALLED = re.compile(r"step-[0-9]{8,16}")
WANTED = (
    "expected a run folder, PyTorch profiler traces (JSON, gzipped or not), Nsight Systems captures or a table of "
    "operations"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One input to read."""

    kind: Kind
    path: Path
    size_bytes: int
    """Size of the file; 0 for a run folder."""


def list_sources(paths: Sequence[Path]) -> tuple[list[Source], list[str]]:
    """All inputs, each once, in the order of the paths and by name within a folder; and what cannot be read, with the
    reason for each.

    Raises:
        DataError: There is nothing to read.
    """
    found: dict[Path, Source] = {}
    unread: list[str] = []
    for path in paths:
        try:
            sources, damaged = _look(path)
        except (DataError, OSError) as error:
            unread.append(format_unreadable(path, error))
            continue
        unread += damaged
        for source in sources:
            found.setdefault(source.path.resolve(), source)
    if not found:
        raise_nothing_readable(unread)
    return list(found.values()), list(dict.fromkeys(unread))


def format_unreadable(path: Path, error: DataError | OSError) -> str:
    """A file and the reason it cannot be read, on one line."""
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def raise_nothing_readable(unread: Sequence[str]) -> NoReturn:
    """Raises because nothing was readable.

    Raises:
        DataError: Always, with the first reason and how many more there are.
    """
    more = f" (and {len(unread) - 1:,} more that cannot be read)" if len(unread) > 1 else ""
    raise DataError(f"{unread[0]}{more}")


def list_window_traces(folder: Path) -> tuple[list[Source], list[str]]:
    """The traces of a run's latest kernel window, if any ran; and those that cannot be read.

    Windows that were asked for while the job ran lie in folders of their own, by step; the last of them is taken.

    Raises:
        OSError: They cannot be read.
        DataError: Their folder is a link, or not a folder.
    """
    windows = folder / "kernels"
    try:
        with open_folder(folder) as root, open_folder(windows, inside=root) as inside:
            if called := list_called(folder):
                with open_folder(windows / called[-1], inside=inside):
                    return _scan(windows / called[-1])
            return _scan(windows) if any(windows.iterdir()) else ([], [])
    except FileNotFoundError:
        return [], []


def list_called(folder: Path) -> list[str]:
    """Names of the folders of a run's windows that were asked for and have a trace, by step."""
    found = [path for path in (folder / "kernels").glob("step-*") if CALLED.fullmatch(path.name)]
    return sorted((path.name for path in found if any(path.glob("rank-*"))), key=lambda name: int(name[5:]))


def _look(path: Path) -> tuple[list[Source], list[str]]:
    if path.is_dir():
        if (path / "run.json").exists():
            return [Source(kind="run", path=path, size_bytes=0)], []
        return _scan(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder: {WANTED}")
    source = _sniff(path)
    if source is None:
        raise DataError(f"{path}: not a file that distprof can read: {WANTED}")
    return [source], []


def _scan(folder: Path) -> tuple[list[Source], list[str]]:
    """The traces in a folder and one level below, and files with a trace's name that are not traces. A capture that
    has its export beside it is left to the export."""
    files, unread = _list_files(folder)
    found: list[Source] = []
    for path in files:
        try:
            source = _sniff(path)
            damage = _describe_damage(path) if source is None else None
        except OSError as error:
            source, damage = None, format_unreadable(path, error)
        found += [] if source is None else [source]
        unread += [] if damage is None else [damage]
    exported = {source.path.with_suffix("") for source in found if source.kind == "nsys"}
    kept = [source for source in found if source.kind != "nsys-rep" or source.path.with_suffix("") not in exported]
    if not kept and not unread:
        raise DataError(f"{folder}: contains nothing that distprof can read: {WANTED}")
    return kept, unread


def _describe_damage(path: Path) -> str | None:
    """Why a file named like a trace is damaged. None: it may well be something else.

    Other JSON files may lie beside traces. But a file whose name promises JSON or a database, and whose content is
    neither, is taken for a trace that was truncated or never written.
    """
    if _is_named_like_text(path):
        reason = _describe_text_damage(path)
    else:
        reason = "not a database" if path.suffix == ".sqlite" else None
    return None if reason is None else f"{path}: {reason}: damaged or truncated"


def _is_named_like_text(path: Path) -> bool:
    return path.name.endswith((".json", ".json.gz"))


def _describe_text_damage(path: Path) -> str | None:
    try:
        text = JsonText(path, USUAL_LIMITS)
        try:
            begin = text.read(SNIFF_BYTES).removeprefix(BOM).lstrip(SPACE)
            more = text.read(1)  # a truncated gzip first yields what it still holds
        finally:
            text.close()
    except DataError as error:
        return str(error).removeprefix(f"{path}: ")
    if not begin:
        return "empty"
    if begin[:1] not in (b"{", b"["):
        return "not JSON"
    return None if more or not _is_cut(begin.decode("utf-8", "replace")) else "ends in the middle"


def _is_cut(text: str) -> bool:
    """Whether the first document in the text is valid JSON so far, but incomplete."""
    try:
        json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text) or error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return False
    return False


def _list_files(folder: Path) -> tuple[list[Path], list[str]]:
    """Regular files in a folder and one level below, by path; and trace-named links that lead out of it."""
    files: list[Path] = []
    links: list[str] = []
    inside = os.path.join(os.path.realpath(folder), "")
    for item in sorted(itertools.chain(folder.glob("*"), folder.glob("*/*"))):
        if os.path.realpath(item).startswith(inside):
            files += [item] if item.is_file() else []
        elif item.is_symlink() and (_is_named_like_text(item) or item.suffix in (".sqlite", *CAPTURES)):
            links.append(f"{item}: a link out of the folder, which is not followed: pass its target")
    return files[:MAX_FILES], links


def _sniff(path: Path) -> Source | None:
    kind: Kind | None = None
    if not path.is_file():  # opening a pipe would block
        return None
    if path.suffix in CAPTURES:
        kind = "nsys-rep"
    elif begins_with(path, SQLITE_MAGIC):
        kind = "nsys"
    elif looks_like_kineto(path):
        kind = "kineto"
    return None if kind is None else Source(kind=kind, path=path, size_bytes=path.stat().st_size)
