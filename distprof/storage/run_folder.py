"""The run folder: one per job, created by rank 0, and read back as a `Run`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec import structs
from msgspec.structs import replace

from distprof.config.decode import decode, load_json
from distprof.errors import DataError, UsageError
from distprof.facts.gpu import join_gpus
from distprof.facts.plain import make_plain
from distprof.facts.roles import detect_other_work
from distprof.facts.run import COLUMN, KINDS, MAX_WORLD, Clock, Run, RunMeta
from distprof.facts.segments import RunSegments
from distprof.facts.writer_liveness import look_at_writer
from distprof.storage.last_state import describe_place, read_last_stack, read_place
from distprof.storage.match_collectives import align_rows, match_collectives
from distprof.storage.module_files import read_modules
from distprof.storage.operation_records import join_operations
from distprof.storage.probes_file import read_probes
from distprof.storage.rank_stream import read_stream
from distprof.storage.rotation import cut_to_common, strip_earlier
from distprof.storage.row_table import RowTable
from distprof.storage.safe_open import open_file, open_folder
from distprof.storage.stream_part import RankStream
from distprof.storage.whole_file import read_object, write_json

SCHEMA = "distprof.run/1.0"
MAX_META_BYTES = 32 << 20
MAX_NAMED = 8
"""How many unexpected files in the folder of streams are named one by one."""
_MAX_HEADER_BYTES, _TAIL_BYTES = 1 << 20, 1 << 16
_RANK_FILE = re.compile(r"rank-(\d{5,9})\.jsonl")
_BESIDE = re.compile(r"flight_recorder-rank-\d{5,9}\.json|rank-\d{5,9}\.(?:position|stack|next\.jsonl)")
"""What else ranks write there: PyTorch's Flight Recorder, their state, and the file in which they will continue."""
StreamOrError = RankStream | DataError | OSError
"""One rank's stream, or why it cannot be read."""
ReadOne = Callable[[Path, int], RankStream]
"""Reads a stream, given its path and the descriptor of its folder."""
ReadEach = Callable[[ReadOne, Sequence[Path], int], Iterable[tuple[int, StreamOrError]]]
"""Reads all streams of a folder by `try_read`; yields each one's place among the paths with it, in any order."""


def create_run_folder(*, runs_dir: str, run_dir: str | None, name: str, now: datetime) -> Path:
    """Creates the folder of a new run, never reusing an old one: a second run in the same second gets a number.

    Raises:
        UsageError: It cannot be created or written, or ``run_dir`` already contains a run.
    """
    wanted = Path(run_dir) if run_dir else Path(runs_dir) / f"{now:%Y-%m-%d_%H-%M-%S}_{format_name(name)}"
    try:
        folder = _claim(wanted, exact=run_dir is not None)
        (folder / "ranks").mkdir()
    except OSError as error:
        where = "run_dir" if run_dir else "runs_dir"
        raise UsageError(f"{wanted}: cannot make the run folder ({error.strerror}): set {where}=...") from error
    return folder


def format_name(name: str) -> str:
    """A job's name as a part of the name of its run folder."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:80] or "run"


def _claim(wanted: Path, *, exact: bool) -> Path:
    if exact:
        if wanted.exists() and any(wanted.iterdir()):
            raise UsageError(f"run_dir={wanted}: is not empty: choose a new or empty folder")
        wanted.mkdir(parents=True, exist_ok=True)
        return wanted
    wanted.parent.mkdir(parents=True, exist_ok=True)
    for number in range(1, 10_000):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise UsageError(f"{wanted}: ten thousand runs in one second; set run_dir=...")


def rank_path(folder: Path, rank: int) -> Path:
    """The path of a rank's stream."""
    return folder / "ranks" / f"rank-{rank:05d}.jsonl"


def kernel_path(folder: Path, rank: int) -> Path:
    """The path of the trace of a rank's kernel window."""
    return folder / "kernels" / f"rank-{rank:05d}.json.gz"


def write_meta(folder: Path, meta: RunMeta) -> None:
    """Writes ``run.json``."""
    write_json(folder / "run.json", {"schema": SCHEMA, **make_plain(meta)})


def read_meta(folder: Path) -> RunMeta:
    """Reads ``run.json``.

    Raises:
        DataError: It is not a run folder, is damaged, or has a newer major version.
    """
    with _open_run(folder) as root:
        return _read_meta(folder / "run.json", root)


@contextlib.contextmanager
def _open_run(folder: Path) -> Iterator[int]:
    with contextlib.ExitStack() as stack:
        try:
            root = stack.enter_context(open_folder(folder))
        except FileNotFoundError:
            raise DataError(f"{folder}: no such folder, and not a run folder: pass one made by distprof") from None
        except OSError as error:
            raise DataError(f"{folder}: {error.strerror}") from None
        yield root


def _read_meta(path: Path, root: int) -> RunMeta:
    missing = f"{path.parent}: not a run folder (no run.json): pass one made by distprof"
    values = read_object(path, schema=SCHEMA, what="run folder", missing=missing, max_bytes=MAX_META_BYTES, inside=root)
    known = RunMeta.__struct_fields__
    meta = decode(RunMeta, {key: item for key, item in values.items() if key in known}, str(path), DataError)
    if not 1 <= meta.world_size <= MAX_WORLD:
        raise DataError(f"{path}: world_size={meta.world_size} is impossible")
    if any(reading.bound_ns < 0 for reading in meta.clock_readings):
        raise DataError(f"{path}: clock_readings: an error below 0 is impossible")
    for name in ("link_readings", "last_link_readings"):
        if not all(reading.bytes_per_s > 0 for reading in getattr(meta, name)):
            raise DataError(f"{path}: {name}: a speed of 0 or less is impossible")
    if meta.launch is not None and not 0 < len(meta.launch.agents) == len(meta.launch.restarts):
        raise DataError(f"{path}: launch: a start without agents, or agents without their counts, are impossible")
    if meta.work is not None and min(filter(None, structs.astuple(meta.work)), default=0) < 0:
        raise DataError(f"{path}: work: negative values are impossible")
    return meta


def add_note(folder: Path, note: str) -> None:
    """Adds a note to ``run.json`` about what became known at the job's end."""
    meta = read_meta(folder)
    write_meta(folder, replace(meta, notes=(*meta.notes, note)))


def read_run(folder: Path, read: ReadOne | None = None, read_each: ReadEach | None = None) -> Run:
    """Reads a run folder: everything that can be trusted, with warnings about everything that cannot.

    Args:
        folder: The run folder.
        read: Reads one rank's stream, given the descriptor of its folder. None: all of it.
        read_each: Has that done for each rank. None: one after the other.

    Raises:
        DataError: It is not a run folder, or files contradict each other.
    """
    warnings: list[str] = []
    unread: list[str] = []
    with _open_run(folder) as root:
        meta = _read_meta(folder / "run.json", root)
        each = partial(read_each or _read_in_turn, read or _read_all)
        check = partial(_check_one, meta=meta, warnings=warnings, unread=unread)
        streams = _read_streams(folder / "ranks", root, each, check, warnings)
        modules, left_out = read_modules(folder, root, meta.run_id, sorted(streams))
        probes, refused = read_probes(folder, root, meta.world_size)
    run = _assemble(meta, [streams[rank] for rank in sorted(streams)], [*warnings, *left_out, *refused])
    return replace(run, unread=tuple(unread), modules=tuple(modules), probes=probes)


def _read_all(path: Path, inside: int) -> RankStream:
    return read_stream(path, inside=inside)


def _read_in_turn(read: ReadOne, paths: Sequence[Path], inside: int) -> Iterator[tuple[int, StreamOrError]]:
    return ((place, try_read(read, path, inside)) for place, path in enumerate(paths))


def try_read(read: ReadOne, path: Path, inside: int) -> StreamOrError:
    """One rank's stream, or why it cannot be read."""
    try:
        return read(path, inside)
    except (DataError, OSError) as error:
        return error


def _read_streams(
    ranks: Path,
    root: int,
    read_each: Callable[[Sequence[Path], int], Iterable[tuple[int, StreamOrError]]],
    check: Callable[[Path, int, StreamOrError], RankStream | None],
    warnings: list[str],
) -> dict[int, RankStream]:
    """The readable streams by rank; none if their folder is gone."""
    streams: dict[int, RankStream] = {}
    try:
        with open_folder(ranks, inside=root) as inside:
            paths = [ranks / name for name in list_streams(inside, warnings)]
            table, found = RowTable(len(paths)), dict[int, StreamOrError]()
            for place, read in read_each(paths, inside):
                kept = read if isinstance(read, Exception) else replace(read, rows=table.place(place, read.rows))
                found[place] = kept
            for place, path in enumerate(paths):
                stream = check(path, inside, found.pop(place))
                if stream is not None:
                    streams[stream.info.rank] = stream
    except FileNotFoundError:
        warnings.append("ranks/ is missing: deleted, or not copied")
    except OSError as error:
        raise DataError(f"{ranks}: {error.strerror}: {_name_owner(root)}") from None
    return streams


def _name_owner(root: int) -> str:
    """What to do if the folder must not be read."""
    owner = os.fstat(root).st_uid
    return f"it belongs to user {owner}: have them run `chmod -R a+rX` on the run folder, or report as that user"


def list_streams(inside: int, warnings: list[str]) -> list[str]:
    """Names of the streams; the first few other files are named in warnings, and the rest are counted."""
    streams: set[str] = set()
    others: list[str] = []
    with os.scandir(inside) as entries:
        files = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    for name in sorted(files):
        if _BESIDE.fullmatch(name):
            continue
        stream = strip_earlier(name)
        named = _RANK_FILE.fullmatch(stream)
        if files[name] and named is not None and stream == rank_path(Path(), int(named[1])).name:
            streams.add(stream)
        else:
            others.append(name)
    warnings += [f"{name}: not a rank stream, ignored" for name in others[:MAX_NAMED]]
    if len(others) > MAX_NAMED:
        warnings.append(f"ranks/: {len(others) - MAX_NAMED:,} more files that are not rank streams, ignored")
    return sorted(streams)


def _check_one(
    path: Path,
    inside: int,
    stream: StreamOrError,
    *,
    meta: RunMeta,
    warnings: list[str],
    unread: list[str],
) -> RankStream | None:
    """One stream; None: it is unreadable, which goes to both lists, or of another run."""
    if isinstance(stream, DataError | OSError):
        reason = f"{stream.strerror}: cannot be read, left out" if isinstance(stream, OSError) else str(stream)
        warnings.append(f"{path.name}: {reason.removeprefix(f'{path}: ')}")
        unread.append(warnings[-1])
        return None
    if stream.run_id != meta.run_id:
        warnings.append(f"{path.name}: belongs to another run, ignored")
        return None
    check_stream(path, stream, meta)
    warnings.extend(stream.warnings)
    info = stream.info
    place = read_place(path, inside=inside) if info.ended is None and info.stand is None else None
    if place is None:
        return stream
    stack, where = read_last_stack(path, inside=inside)
    place = replace(place, stack=stack, where=where)
    lives = info.last_write is not None and info.last_write.writer_lives
    state = describe_place(place) if info.error is None and not lives else info.error
    return replace(stream, info=replace(info, stand=place, error=state))


def check_stream(path: Path, stream: RankStream, meta: RunMeta) -> None:
    """Whether a stream is the one that its name says, and of a job as large as ``run.json`` says.

    Raises:
        DataError: It is not.
    """
    rank = int(path.stem.removeprefix("rank-"))
    if stream.info.rank != rank:
        raise DataError(f"{path}: says it is rank {stream.info.rank}: a rank exists twice, or files were renamed")
    if stream.world_size != meta.world_size:
        raise DataError(
            f"{path}: says the job has {stream.world_size} ranks, but run.json says {meta.world_size}: "
            "files of two runs are mixed"
        )
    if rank >= meta.world_size:
        raise DataError(f"{path}: rank {rank} of a job of {meta.world_size} ranks")


def _assemble(meta: RunMeta, streams: list[RankStream], warnings: list[str]) -> Run:
    """Aligns the ranks' rows by step number."""
    streams, dropped = cut_to_common(streams)
    meta = replace(meta, notes=(*meta.notes, *dropped))
    axis, rows, left_out = align_rows([stream.rows for stream in streams])
    segments = RunSegments({stream.info.rank: stream.segments for stream in streams})
    infos = tuple(stream.info for stream in streams)
    match = partial(
        match_collectives, [info.rank for info in infos], axis=axis.astype(np.int64), world_size=meta.world_size
    )
    alike = [not other for other in detect_other_work([stream.rows for stream in streams])]
    collectives, parted = match(
        [stream.collectives if same else () for stream, same in zip(streams, alike, strict=True)]
    )
    timed = [stream.device_collectives if same else () for stream, same in zip(streams, alike, strict=True)]
    on_device, _ = match(timed, clock=Clock.DEVICE)  # they part there too
    warnings = [*warnings, *left_out, *parted, *_warn_of_silent(streams)]
    return Run(
        meta=meta, ranks=infos, rows=rows, warnings=tuple(warnings), segments=segments, collectives=collectives,
        device_collectives=on_device, operations=tuple(join_operations(stream.operations) for stream in streams),
        gpus=tuple(join_gpus(stream.gpus) for stream in streams),
        scheduling=tuple(stream.scheduling for stream in streams),
    )  # fmt: skip


def is_running(folder: Path) -> bool:
    """Whether rank 0 writes its stream: known from rank 0's stream alone, and without reading all of it.

    Where locks do not show it (another host, some file systems): whether the stream has no end.
    """
    try:
        with open_file(rank_path(folder, 0)) as file:
            header = load_json(file.readline(_MAX_HEADER_BYTES))
            lives = look_at_writer(file.fileno(), header if isinstance(header, dict) else {}).writer_lives
            if lives is not None:
                return lives
            last = read_last_line(file)
    except (OSError, DataError, ValueError, RecursionError):
        return False
    return b'"type":"end"' not in last.replace(b" ", b"")


def read_last_line(file: BinaryIO) -> bytes:
    """The last line of a stream; empty if there is none, and without its begin if it is very long."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
    return b"".join(file.read().splitlines()[-1:])


def complete_ends(run: Run, completed_rows: Mapping[int, int] | None) -> Run:
    """The run, with an end for ranks that completed but could not write it.

    Args:
        run: The run as read.
        completed_rows: How many steps each rank recorded, if it is known that all ranks completed.
    """
    if completed_rows is None:
        return run
    found = (run.column("step") >= 0).sum(axis=1).tolist()
    infos = []
    for info, rows in zip(run.ranks, found, strict=True):
        if info.ended is None and info.rank in completed_rows:
            lost = max(completed_rows[info.rank] - info.rows_dropped - rows, 0)
            info = replace(info, ended="completed", last_write=None, rows_lost=lost)
        infos.append(info)
    return replace(run, ranks=tuple(infos))


def _warn_of_silent(streams: list[RankStream]) -> list[str]:
    """A warning about ranks that issued collectives but recorded none individually, although others did."""
    columns = [COLUMN[f"{kind}_count"] for kind in KINDS]
    silent = [
        str(stream.info.rank) for stream in streams if not stream.collectives and np.nansum(stream.rows[:, columns]) > 0
    ]
    if not silent or len(silent) == len(streams):
        return []
    shown = ", ".join(silent[:8]) + (", ..." if len(silent) > 8 else "")
    ranks = "rank" if len(silent) == 1 else "ranks"
    why = "as for hosts that do not share the run folder (distprof gather)"
    return [f"{ranks} {shown}: collectives known only as sums per step, {why}"]
