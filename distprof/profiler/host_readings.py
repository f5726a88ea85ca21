"""The hosts' clocks and the links between them, read at the start and the end of a job and kept in ``run.json``."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from distprof.facts.run import RunMeta
from distprof.profiler.setting import Setting
from distprof.record.clock_sync import probe_links, read_clocks
from distprof.record.step_writer import StepWriter
from distprof.storage.run_folder import write_meta


class HostReadings:
    """Reads clocks twice, so that drift is known, and links once."""

    def __init__(self, setting: Setting, group: dist.ProcessGroup, meta: RunMeta, step_writer: StepWriter) -> None:
        """Reads nothing yet."""
        self._setting, self._group, self._step_writer = setting, group, step_writer
        self._meta = meta

    def read_first(self) -> RunMeta:
        """Reads clocks and links before the first step, and returns the job's facts with them. Collective."""
        self._read("start", links=True)
        return self._meta

    def read_last(self) -> None:
        """Reads the clocks once more. Collective."""
        self._read("end", links=False)

    def _read(self, when: str, *, links: bool) -> None:
        """Adds the readings; a failure costs a note."""
        meta = self._meta
        try:
            clocks = (*meta.clock_readings, *read_clocks(self._group))
            found = probe_links(self._group) if links else meta.link_readings
            self._meta = replace(meta, clock_readings=clocks, link_readings=found)
        except RuntimeError as error:
            note = f"host clocks were not read at the {when} of the job: {str(error).splitlines()[0][:200]}"
            self._meta = replace(meta, notes=(*meta.notes, note))
        if self._setting.world.rank == 0:
            try:
                write_meta(self._setting.folder, self._meta)
            except OSError as error:
                self._step_writer.refuse("run.json was not brought up to date", error)
