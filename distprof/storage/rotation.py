"""One rank's stream in two files, so that a job of any length keeps only its latest steps.

``rank-00000.jsonl`` is written to. Once it has enough steps, its writer makes ``rank-00000.next.jsonl``, renames its
own file to ``rank-00000.earlier.jsonl``, over the one before, and the next to ``rank-00000.jsonl``. A file is never
changed after it has been left, and each has its own header with its number, so that a killed writer loses no step by
it, and a reader that comes in between notices.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from msgspec.structs import replace

from distprof.errors import DataError
from distprof.facts.run import COLUMN
from distprof.facts.segments import SegmentTable
from distprof.storage.record_lines import decode_line
from distprof.storage.safe_open import open_file
from distprof.storage.stream_part import MAX_LINE_BYTES, MAX_STREAM_BYTES, PartReader, RankStream, parse_part

_EARLIER, _NEXT = ".earlier.jsonl", ".next.jsonl"
TRIES = 20
"""How often a reader looks again if a writer has gone on between two looks."""
PAUSE_S = 0.005
Part = tuple[Path, BinaryIO]


def name_earlier(path: Path) -> Path:
    """The file before the one that is written to."""
    return path.with_name(path.name.removesuffix(".jsonl") + _EARLIER)


def name_next(path: Path) -> Path:
    """The file in which a writer will go on."""
    return path.with_name(path.name.removesuffix(".jsonl") + _NEXT)


def strip_earlier(name: str) -> str:
    """The name of the file that is written to, from its own or that of the one before."""
    return name.removesuffix(_EARLIER) + ".jsonl" if name.endswith(_EARLIER) else name


def put_in_place(path: Path) -> bool:
    """Makes the file that is written to the earlier one, and the next one that which is written to.

    Returns:
        Whether it is done. If not, everything is as before, and the next file is gone.
    """
    try:
        os.replace(path, name_earlier(path))
        try:
            os.replace(name_next(path), path)
        except OSError:
            os.replace(name_earlier(path), path)
            raise
    except OSError:
        with contextlib.suppress(OSError):
            name_next(path).unlink()
        return False
    return True


@contextlib.contextmanager
def open_parts(path: Path, *, inside: int | None) -> Iterator[Sequence[Part]]:
    """Opens the files of one stream, the earlier first, such that no step between them is missing.

    Args:
        path: The file that is written to.
        inside: Descriptor of the containing folder; None: links are followed.

    Raises:
        OSError: Neither can be opened.
        DataError: One is not a regular file, is a link inside a folder, or is too large.
    """
    for turn in range(TRIES):
        with contextlib.ExitStack() as stack:
            parts = _open_both(path, inside, stack)
            numbers = [_read_number(file) for _, file in parts]
            whole = len(parts) == 2 and numbers[0] + 1 == numbers[1]
            if whole or turn + 1 == TRIES or (len(parts) == 1 and parts[0][0] == path):
                yield parts if whole else parts[-1:]
                return
        time.sleep(PAUSE_S)  # its writer is about to go on in a new file, or was killed while it did


def _open_both(path: Path, inside: int | None, stack: contextlib.ExitStack) -> list[Part]:
    """What there is of the two; the newer is opened first, so that no file can come between them unseen."""
    parts: list[Part] = []
    missing = None
    for each in (path, name_earlier(path)):
        try:
            file = open_file(each, inside=inside, max_bytes=MAX_STREAM_BYTES)
        except FileNotFoundError as error:
            missing = missing or error
        else:
            parts.insert(0, (each, stack.enter_context(file)))
    if not parts and missing is not None:
        raise missing
    return parts


def _read_number(file: BinaryIO) -> int:
    header = decode_line(file.readline(MAX_LINE_BYTES))
    file.seek(0)
    return parse_part(header or {})[0]


def join_parts(readers: Sequence[PartReader]) -> RankStream:
    """What was read of the files of one stream, the earlier first, as one.

    Raises:
        DataError: The last has no readable header, or its major version is newer.
    """
    last = readers[-1].finish()
    if len(readers) == 1:
        return _count_dropped(last)
    try:
        first = readers[0].finish()
    except DataError as error:
        return _count_dropped(replace(last, warnings=(*last.warnings, f"left out: {error}")))
    if (first.run_id, first.info.rank) != (last.run_id, last.info.rank):
        return _count_dropped(
            replace(last, warnings=(*last.warnings, f"{readers[0].path.name}: of another run, left out"))
        )
    there = np.isin(first.rows[:, COLUMN["step"]], last.rows[:, COLUMN["step"]])  # once stalled, and then finished
    return _count_dropped(
        replace(
            last, rows=np.concatenate([first.rows[~there], last.rows]),
            segments=SegmentTable({**first.segments.read_packed(), **last.segments.read_packed()}),
            collectives=(*first.collectives, *last.collectives), warnings=(*first.warnings, *last.warnings),
            device_collectives=(*first.device_collectives, *last.device_collectives), rows_before=first.rows_before,
            operations=(*first.operations, *last.operations), gpus=(*first.gpus, *last.gpus),
            scheduling=np.concatenate([first.scheduling, last.scheduling]),
        )
    )  # fmt: skip


def _count_dropped(stream: RankStream) -> RankStream:
    return replace(stream, info=replace(stream.info, rows_dropped=stream.rows_before))


def cut_to_common(streams: Sequence[RankStream]) -> tuple[list[RankStream], tuple[str, ...]]:
    """Leaves out the steps that some rank has dropped already and others have not.

    Ranks go on in a new file at steps of their own; without this, those steps would look as if a rank had not taken
    part in them.

    Returns:
        The streams, and a note if steps have been dropped.
    """
    firsts = [stream.rows[:, COLUMN["step"]].min() for stream in streams if stream.rows_before and len(stream.rows)]
    if not firsts:
        return [*streams], ()
    begin = int(max(firsts))
    note = f"only the latest steps are kept, from step {begin:,} on: profile.keep_steps"
    return [_cut(stream, begin) for stream in streams], (note,)


def _cut(stream: RankStream, begin: int) -> RankStream:
    kept = stream.rows[:, COLUMN["step"]] >= begin
    dropped = stream.info.rows_dropped + int((~kept).sum())
    segments = SegmentTable({step: own for step, own in stream.segments.read_packed().items() if step >= begin})
    return replace(
        stream, rows=stream.rows[kept], segments=segments, info=replace(stream.info, rows_dropped=dropped)
    )  # collectives are matched over the rows' steps
