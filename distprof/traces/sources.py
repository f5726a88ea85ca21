"""What do the paths that a user gave hold? File types are detected from content, never from the name alone."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from distprof.errors import DataError, DistprofError
from distprof.storage.remote import Place, Url, fetch_file, list_remote
from distprof.storage.safe_open import SQLITE_MAGIC, USUAL_LIMITS, begins_with, open_folder
from distprof.traces.kineto.json_stream import BOM
from distprof.traces.kineto.json_text import SPACE, JsonText
from distprof.traces.kineto.read_kineto import SNIFF_BYTES, looks_like_kineto
from distprof.traces.reduced_file import MAGIC, SUFFIX

Kind = Literal["run", "kineto", "nsys", "nsys-rep", "reduced", "remote"]
CAPTURES = (".nsys-rep", ".qdrep")
TRACE_NAMES = (".json", ".json.gz", ".sqlite", *CAPTURES, SUFFIX)
"""Files below a URL that are fetched, to find out what they are."""
MAX_FILES = 100_000
LONGEST_NAME = 200
"""Of a file that is fetched; its end is kept."""
_STRANGE = re.compile(r"[^A-Za-z0-9.+=-]")
CALLED = re.compile(r"step-[0-9]{8,16}")
WANTED = (
    "expected a run folder, PyTorch profiler traces (JSON, gzipped or not), Nsight Systems captures, reduced ranks or "
    "a table of operations"
)


class Source(Struct, frozen=True, kw_only=True):
    """One input to read."""

    kind: Kind
    """Of a remote file, it is not known before it is fetched."""
    path: Path
    size_bytes: int
    """Size of the file; 0 for a run folder."""
    shown: str | None = None
    """How messages and reports name it. None: by the path."""
    url: Url | None = None
    """Where it is fetched from; the path is then only its name."""
    named: bool = True
    """Of a remote file: the user named it, and not a folder that holds other files, too."""

    def __str__(self) -> str:
        return self.shown or str(self.path)


@contextlib.contextmanager
def fetch(source: Source) -> Iterator[Source | None]:
    """The source as a file of this machine, which is gone afterwards if it was remote. None: it is no trace, and nobody
    said that it was. In errors the file has the name that the user knows.

    Raises:
        DistprofError: It cannot be reached.
        DataError: It is damaged, or not what it was named as.
    """
    with contextlib.ExitStack() as stack:
        local: Source | None = source
        try:
            if source.url is not None:
                import tempfile

                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="distprof-"))
                path = Path(folder) / f"_{_STRANGE.sub('_', source.path.name)}"[-LONGEST_NAME:]
                url, source = source.url, replace(source, path=path, shown=str(source))
                fetch_file(url, path)
                local = _sniff(path)
                if local is None and source.named:
                    raise DataError(f"{source}: not a file that distprof can read: {WANTED}")
                if local is None and (damage := _describe_damage(path)) is not None:
                    raise DataError(damage)
                local = None if local is None else replace(local, shown=str(source))
            yield local
        except (DataError, OSError) as error:
            raise DataError(format_unreadable(source.path, error).replace(str(source.path), str(source), 1)) from None


def list_sources(paths: Sequence[Place]) -> tuple[list[Source], list[str]]:
    """All inputs, each once, in the order of the paths and by name within a folder; and what cannot be read, with the
    reason for each.

    Raises:
        DataError: There is nothing to read.
    """
    found: dict[Place, Source] = {}
    unread: list[str] = []
    for path in paths:
        try:
            sources, damaged = _look_at_url(path) if isinstance(path, Url) else _look(path)
        except (DataError, OSError) as error:
            unread.append(format_unreadable(path, error))
            continue
        unread += damaged
        for source in sources:
            found.setdefault(source.url or source.path.resolve(), source)
    if not found:
        raise_nothing_readable(unread)
    return list(found.values()), list(dict.fromkeys(unread))


def format_unreadable(path: object, error: DistprofError | OSError) -> str:
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


def _look_at_url(url: Url) -> tuple[list[Source], list[str]]:
    several, files = list_remote(url)
    if any(file.below == "run.json" for file in files):
        return [Source(kind="run", path=Path(url.name), size_bytes=0, url=url)], []
    wanted = [file for file in files if not several or file.url.name.endswith(TRACE_NAMES)]
    if not wanted:
        raise DataError(f"{url}: contains nothing that distprof can read: {WANTED}")
    exported = {file.url.text.removesuffix(".sqlite") for file in wanted if file.url.name.endswith(".sqlite")}
    return [
        Source(
            kind="remote", path=Path(file.url.name), size_bytes=file.size_bytes, shown=str(file.url), url=file.url,
            named=not several,
        )
        for file in wanted
        if not (file.url.name.endswith(CAPTURES) and file.url.text.rpartition(".")[0] in exported)
    ], []  # fmt: skip


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
        wanted = {".sqlite": "not a database", SUFFIX: "not a file of reduced ranks"}
        reason = wanted.get(path.suffix)
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
    elif begins_with(path, MAGIC):
        kind = "reduced"
    elif looks_like_kineto(path):
        kind = "kineto"
    return None if kind is None else Source(kind=kind, path=path, size_bytes=path.stat().st_size)
