"""Streams that rank 0 writes for the ranks that cannot see its run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from distprof.facts.run import FloatArray
from distprof.storage.rank_stream import StreamWriter


class RemoteStreams:
    """The files of other ranks; used by one thread at a time."""

    def __init__(self, writers: dict[int, StreamWriter], refused: Callable[[str, OSError], None]) -> None:
        """Takes the files by rank, and the function that receives what could not be written and why."""
        self._writers, self._refused = writers, refused
        self._unwritten = dict.fromkeys(writers, 0)

    def write(self, tables: Sequence[FloatArray]) -> None:
        """Appends the new rows of every rank, ``[num_new_rows, ROW_WIDTH]`` each; after a failure only counts them."""
        for rank, writer in self._writers.items():
            rows = list(tables[rank])
            if self._unwritten[rank]:
                self._unwritten[rank] += len(rows)
                continue
            try:
                writer.write_steps(rows, [None] * len(rows))
            except OSError as error:
                self._unwritten[rank] = len(rows)
                self._refused("steps of ranks on other hosts are no longer written", error)

    def end(self) -> None:
        """Writes that the ranks have completed and how many rows were lost, and closes the files."""
        for rank, writer in self._writers.items():
            try:
                writer.write_end(
                    "completed", error=None, traceback=None, rows_lost=self._unwritten[rank], notes=()
                )  # fmt: skip
            except OSError as error:
                self._refused("the end of ranks on other hosts was not written", error)
            writer.close()
