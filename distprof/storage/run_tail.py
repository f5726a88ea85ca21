"""A run folder that is looked at again and again while its job writes: only what is new is read each time.

Memory is bounded: of each rank only the latest steps are kept.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import BinaryIO

from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.run import RankInfo, Run
from distprof.facts.stand import RankState
from distprof.storage.last_state import read_place
from distprof.storage.rotation import join_parts, open_parts
from distprof.storage.run_folder import list_streams, read_meta, read_run
from distprof.storage.safe_open import open_file, open_folder
from distprof.storage.stream_part import MAX_LINE_BYTES, MAX_STREAM_BYTES, PartReader, RankStream

USUAL_STEP_BYTES = 2048
"""A step takes less on average; steps further from the end than this for each that is kept are not decoded at first."""


class RankTail:
    """One rank's stream."""

    def __init__(self, path: Path, keep_steps: int) -> None:
        """Has read nothing so far."""
        self.path, self._keep_steps = path, keep_steps
        self.place: RankState | None = None
        """Where the rank stands just now, as of the last look. None: not known, or it has ended."""
        self._parts: dict[bytes, PartReader] = {}  # by its header, the earlier first

    def read(self, *, inside: int | None = None) -> None:
        """Reads what has come since the last call.

        Raises:
            OSError: It cannot be read.
            DataError: It is not a regular file, or a link inside the folder.
        """
        if not self._read_on(inside):
            self._read_anew(inside)
        self._forget()
        self.place = None if inside is None else read_place(self.path, inside=inside)

    def _read_on(self, inside: int | None) -> bool:
        """Reads on in the file that is written to; False: that is another one now, or was never read."""
        try:
            file = open_file(self.path, inside=inside, max_bytes=MAX_STREAM_BYTES)
        except FileNotFoundError:  # its writer is about to go on in a new file, or was killed while it did
            return False
        with file:
            known = self._parts.get(_read_header(file))
            if known is not None:
                known.read(file)
            return known is not None

    def _read_anew(self, inside: int | None) -> None:
        with open_parts(self.path, inside=inside) as files:
            parts = {_read_header(file): (path, file) for path, file in files}
            self._parts = {key: self._parts.get(key) or PartReader(path) for key, (path, _) in parts.items()}
            for key, (path, file) in parts.items():
                self._parts[key].path = path
                self._parts[key].read(file, last_bytes=self._keep_steps * USUAL_STEP_BYTES)

    def _forget(self) -> None:
        *earlier, last = self._parts.items()
        if earlier and last[1].num_steps >= self._keep_steps:
            self._parts = dict([last])
        for reader in self._parts.values():
            if reader.num_steps >= 2 * self._keep_steps:
                reader.keep_latest(self._keep_steps)

    def take_latest(self, steps: int) -> list[FloatArray]:
        """The rows of the last so many steps, in the order written."""
        rows: list[FloatArray] = []
        for reader in reversed(self._parts.values()):
            rows = [*reader.take_latest(steps - len(rows)), *rows]
        return rows

    def read_info(self) -> RankInfo:
        """Who the rank is, and how it ended if it has.

        Raises:
            DataError: As of `finish`.
        """
        return self._get_last().read_info()

    def finish(self) -> RankStream:
        """All that is kept, as one stream.

        Raises:
            DataError: Nothing readable has been read.
        """
        self._get_last()
        return join_parts([*self._parts.values()])

    def _get_last(self) -> PartReader:
        if not self._parts:
            raise DataError(f"{self.path}: nothing could be read")
        return [*self._parts.values()][-1]


class RunTail:
    """The folder of one job. `look` first, then ask."""

    def __init__(self, folder: Path, *, max_rows: int, least_steps: int, most_steps: int) -> None:
        """Reads who the job is.

        Args:
            folder: The run folder.
            max_rows: Rows of all ranks together that are kept, or somewhat more.
            least_steps: Steps that are kept of each rank, however many ranks there are.
            most_steps: Steps that are kept at most, or twice as many.

        Raises:
            DataError: It is not a run folder.
        """
        self.folder, self.meta = folder, read_meta(folder)
        self._keep_steps = min(most_steps, max(least_steps, max_rows // self.meta.world_size))
        self.tails: dict[str, RankTail] = {}
        """By the name of the stream; those that can be read."""

    def look(self) -> None:
        """Reads what is new in each stream. What cannot be read is left for the next time.

        Raises:
            DataError: The run folder is gone, or no run folder any more.
        """
        self.meta = read_meta(self.folder)
        ranks = self.folder / "ranks"
        with contextlib.suppress(OSError), open_folder(self.folder) as root, open_folder(ranks, inside=root) as inside:
            for name in list_streams(inside, []):
                tail = self.tails.get(name) or RankTail(ranks / name, self._keep_steps)
                with contextlib.suppress(OSError, DataError):
                    tail.read(inside=inside)
                    self.tails[name] = tail

    def make_run(self) -> Run:
        """The facts as of the last look, by the code that reads a whole folder.

        Raises:
            DataError: Files contradict each other.
        """
        return read_run(self.folder, self._finish)

    def _finish(self, path: Path, inside: int) -> RankStream:
        if (tail := self.tails.get(path.name)) is None:
            raise DataError(f"{path}: could not be read yet")
        return tail.finish()


def _read_header(file: BinaryIO) -> bytes:
    """What tells the files of one stream apart, which their names and their places on the disk do not."""
    return file.readline(MAX_LINE_BYTES)
