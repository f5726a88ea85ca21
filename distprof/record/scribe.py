"""One rank's finished steps, packed and written to its own file."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from distprof.record.recorder import Recorder, StepRecord
from distprof.record.rows import pack_row, read_memory
from distprof.run import FloatArray
from distprof.stream import StreamWriter


class Scribe:
    """Takes steps from the recorder and writes them; called by the background thread, and once at the end."""

    def __init__(
        self, *, recorder: Recorder, writer: StreamWriter | None, device: torch.device, warn: Callable[[str], None]
    ) -> None:
        """Ties a recorder to a file.

        Args:
            recorder: Where the steps come from.
            writer: The rank's file. None: rows are packed and not written.
            device: Whose memory is read.
            warn: Told once when writing fails.
        """
        self._recorder, self._writer, self._device, self._warn = recorder, writer, device, warn
        self._lock = threading.Lock()
        self._unwritten = 0
        self._notes: list[str] = []

    def take(self, wait: bool) -> list[FloatArray]:
        """Packs and writes what has finished, and returns the rows.

        Args:
            wait: Waits for the device's last steps. Synchronises: only after training.
        """
        records = self._recorder.drain(wait=wait)
        if not records:
            return []
        in_use, peak = read_memory(self._device)
        rows = [pack_row(record, memory_bytes=in_use, memory_peak_bytes=peak) for record in records]
        with self._lock:
            self._write(rows, records)
        return rows

    def note(self, text: str) -> None:
        """Keeps a note on what could not be measured, for the end of the file."""
        self._notes.append(text)

    def end(self, ended: str, *, error: str | None = None, traceback: str | None = None) -> None:
        """Writes how the rank ended and closes the file. Further calls do nothing."""
        with self._lock:
            if self._writer is None:
                return
            lost = self._recorder.rows_lost + self._unwritten
            try:
                self._writer.write_end(ended, error=error, traceback=traceback, rows_lost=lost, notes=self._notes)
            except OSError as failure:
                self._warn(f"the end of this rank was not written: {failure.strerror}")
            self._writer.close()
            self._writer = None

    def _write(self, rows: list[FloatArray], records: list[StepRecord]) -> None:
        if self._writer is None or self._unwritten:
            self._unwritten += len(rows)
            return
        segments = [record.segments if record.phase_host_ns is not None else None for record in records]
        try:
            self._writer.write_steps(rows, segments)
        except OSError as error:
            self._unwritten += len(rows)
            self._warn(f"steps are no longer written ({error.strerror}); training goes on")
