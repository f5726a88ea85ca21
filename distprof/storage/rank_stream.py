"""One rank's records on disk: JSON lines, each with its own checksum.

A line is a JSON object whose last key is ``crc``, the CRC-32 of everything before it. A truncated or damaged line is
dropped and counted, and reading continues at the next newline, so a killed writer loses only what it had not written
yet. The first line is the header. The second reserves space for the end record, in case the disk is full then. Then
come steps, with readings of how the training thread gets a core between them and, about once a window, records of the
rank's GPU, and an end record; a second one says how the process ended after that. A state record says what a rank is
doing, until a step or the end follows; pending records are steps that its device had not finished then, and count
unless the step itself is written later.

A writer that keeps only the latest steps goes on in a new file once its own has enough, and the full one takes the
place of the one before: see `distprof.storage.rotation`. Every file says everything anew that its steps need.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import GpuCaps, GpuSpan
from distprof.facts.plain import make_plain
from distprof.facts.run import COLUMN, RankInfo
from distprof.facts.segments import Segments
from distprof.facts.stand import RankState
from distprof.facts.writer_liveness import hold
from distprof.storage.collective_records import CollectiveLines, GroupInfo, StepCollectives
from distprof.storage.gpu_records import encode_gpu
from distprof.storage.operation_records import OperationLines, StepOperations
from distprof.storage.record_lines import FIELDS, encode_line, encode_padded, encode_step, shorten_end
from distprof.storage.rotation import join_parts, name_next, open_parts, put_in_place
from distprof.storage.safe_open import require_own
from distprof.storage.stream_part import SCHEMA, PartReader, RankStream


def append_end(path: Path, ended: str, *, error: str) -> None:
    """Records how a process ended after it had closed its file; does nothing if there is no file."""
    with contextlib.suppress(OSError):
        require_own(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            _write_all(descriptor, encode_line({"type": "end", "ended": ended, "error": error}))
        finally:
            os.close(descriptor)


class StreamWriter:
    """Appends one rank's records. Every call writes immediately; none is made inside a step."""

    def __init__(
        self, path: Path, *, run_id: str, world_size: int, info: RankInfo, keep_steps: int | None = None
    ) -> None:
        """Creates the file and writes its header.

        Args:
            path: The file.
            run_id: Of the job.
            world_size: Ranks of the job.
            info: This rank.
            keep_steps: At least this many of the latest steps stay on disk, and at most twice as many and those of one
                call. None: all.

        Raises:
            OSError: The file exists already, or cannot be written.
        """
        self._header = {"type": "header", "schema": SCHEMA, "run_id": run_id, "world_size": world_size}
        self._info, self._keep_steps = make_plain(info), keep_steps
        self._part = self._rows_before = self._rows_here = 0
        self._collectives, self._operations = CollectiveLines(), OperationLines()
        self.path = path
        """The file."""
        self._fd, self._size, self._reserved_at = self._create(path)

    def _create(self, path: Path) -> tuple[int, int, int]:
        """A new file's descriptor, its size, and where its reserved line is."""
        require_own(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            place = {"part": self._part, "rows_before": self._rows_before, "held": hold(descriptor)}
            first = encode_line({**self._header, **place, "fields": FIELDS, "info": self._info})
            size = _write_all(descriptor, first + encode_padded({"type": "reserve"}))
        except OSError:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return descriptor, size, len(first)

    def write_steps(
        self,
        rows: Sequence[FloatArray],
        segments: Sequence[Segments | None],
        collectives: Sequence[StepCollectives | None] | None = None,
        groups: Sequence[GroupInfo] = (),
        operations: Sequence[StepOperations | None] | None = None,
    ) -> None:
        """Appends either all steps or, if the disk refuses and OSError is raised, none.

        Args:
            rows: One per step, ``[ROW_WIDTH]``.
            segments: As many; None: not kept.
            collectives: As many. None: not kept for any step.
            groups: All process groups so far, by code.
            operations: As many as steps. None: not kept for any step.
        """
        if self._keep_steps is not None and self._rows_here >= self._keep_steps:
            self._go_on()
        lines: list[bytes] = []
        nothing = [None] * len(rows)
        for row, kept, seen, done in zip(rows, segments, collectives or nothing, operations or nothing, strict=True):
            first, kept_collectives = self._encode_collectives(row, seen, groups)
            schedule, kept_operations = self._encode_operations(row, done)
            step = encode_step(row, kept, kept_collectives, kept_operations)
            lines += [*map(encode_line, [*first, *schedule]), step]
        self._append(lines)
        self._rows_here += len(rows)

    def _go_on(self) -> None:
        """Goes on in a new file; in the old one if that cannot be made, until the next call."""
        here, following = (self._part, self._rows_before), name_next(self.path)
        self._part, self._rows_before = self._part + 1, self._rows_before + self._rows_here
        try:
            following.unlink(missing_ok=True)
            created = self._create(following)
        except OSError:
            self._part, self._rows_before = here
            return
        if not put_in_place(self.path):
            os.close(created[0])
            self._part, self._rows_before = here
            return
        os.close(self._fd)
        self._fd, self._size, self._reserved_at = created
        self._rows_here = 0
        self._collectives.forget_written()
        self._operations.forget_written()

    def write_state(self, text: str, pending: Sequence[FloatArray] = (), stand: RankState | None = None) -> None:
        """Appends where the rank stands, and rows of steps that its device has not finished, in case no end follows."""
        state = encode_line({"type": "state", "error": text, "stand": None if stand is None else make_plain(stand)})
        self._append([*(encode_step(row, None, kind="pending") for row in pending), state])

    def write_gpu(self, caps: GpuCaps, spans: Sequence[GpuSpan]) -> None:
        """Appends what the driver has said of the rank's GPU."""
        self._append([encode_line(encode_gpu(caps, spans))])

    def write_scheduling(self, reading: Mapping[str, float]) -> None:
        """Appends a reading of how the training thread gets a core: `distprof.facts.scheduling.SCHEDULING_FIELDS`."""
        self._append([encode_line({"type": "scheduling", **reading})])

    def hold(self) -> None:
        """Shows again that the writer lives, after this process has read its own file: closing it releases the lock."""
        hold(self._fd)

    def write_passed(self) -> None:
        """Makes the state that was written last void."""
        self._append([encode_line({"type": "passed"})])

    def write_end(
        self, ended: str, *, error: str | None, traceback: str | None, rows_lost: int, notes: Sequence[str],
        unseen_per_step: float = 0.0, point_to_point: bool = False, forwards: int | None = None,
    ) -> None:  # fmt: skip
        """Appends how the rank ended or, when the disk refuses, writes what fits into the line that was reserved."""
        end = {
            "type": "end", "ended": ended, "error": error, "traceback": traceback, "rows_lost": rows_lost,
            "notes": [*notes, *self._collectives.describe_dropped(), *self._operations.describe_dropped()],
            "unseen_per_step": unseen_per_step, "point_to_point": point_to_point,
            **({} if forwards is None else {"forwards": forwards}),
        }  # fmt: skip
        try:
            self._append([encode_line(end)])
        except OSError:
            os.pwrite(self._fd, shorten_end(end), self._reserved_at)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._fd)

    def _encode_collectives(
        self, row: FloatArray, seen: StepCollectives | None, groups: Sequence[GroupInfo]
    ) -> tuple[list[dict[str, object]], list[object] | None]:
        if seen is None:
            return [], None
        return self._collectives.encode(int(row[COLUMN["step"]]), int(row[COLUMN["begin_host_ns"]]), seen, groups)

    def _encode_operations(
        self, row: FloatArray, done: StepOperations | None
    ) -> tuple[list[dict[str, object]], list[object] | None]:
        if done is None:
            return [], None
        begin_ns = row[COLUMN["begin_device_ns" if done.on_device else "begin_host_ns"]]
        return self._operations.encode(int(row[COLUMN["step"]]), int(begin_ns), done)

    def _append(self, lines: Sequence[bytes]) -> None:
        try:
            self._size += _write_all(self._fd, b"".join(lines))
        except OSError:
            with contextlib.suppress(OSError):  # no later line may follow a truncated one
                os.ftruncate(self._fd, self._size)
                os.lseek(self._fd, self._size, os.SEEK_SET)
            raise


def _write_all(descriptor: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    return len(data)


def read_stream(path: Path, *, inside: int | None = None) -> RankStream:
    """Reads what is valid in one rank's files so far; their writer may still be running.

    Args:
        path: The file that is written to.
        inside: Descriptor of the containing folder; None: links are followed.

    Raises:
        OSError: It cannot be read.
        DataError: There is no readable header, or its major version is newer.
    """
    with open_parts(path, inside=inside) as files:
        readers = [PartReader(part) for part, _ in files]
        for reader, (_, file) in zip(readers, files, strict=True):
            reader.read(file)
        return join_parts(readers)
