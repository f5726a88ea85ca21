"""The hosts' clocks and the links between them, read at the start and the end of a job and kept in ``run.json``."""

from __future__ import annotations

from collections.abc import Callable

import torch.distributed as dist
from msgspec.structs import replace

from distprof.errors import read_first_line
from distprof.facts.run import RunMeta
from distprof.profiler.job.rank_context import OpenRankContext
from distprof.record.device.torch_device import TorchDevice
from distprof.record.gather.step_writer import StepWriter
from distprof.record.hosts.clock_sync import read_clocks
from distprof.record.hosts.link_probe import probe_device_links, probe_links
from distprof.storage.run_folder import write_meta

FIRST_PROBE_S = 3.0
"""For how long hosts are begun to be probed at the start of a job whose data goes from device to device."""
LAST_PROBE_S = 5.0
"""How long probing the links again may hold up the end of a job."""


class HostReadings:
    """Reads clocks twice, so that their drift is known, and links: those of gloo twice as well, to see a change."""

    def __init__(
        self,
        context: OpenRankContext,
        group: dist.ProcessGroup,
        meta: RunMeta,
        step_writer: StepWriter,
        *,
        training_waits: bool = True,
    ) -> None:
        """``training_waits``: whether the script's own process groups are not in use meanwhile."""
        self._context, self._group, self._step_writer = context, group, step_writer
        self._training_waits = training_waits
        self._meta = meta
        self._on_host = context.world.backend == "gloo"  # else gloo's network need not be that of the collectives

    def read_first(self) -> RunMeta:
        """Reads clocks and links at the start of the job, and returns the job's facts with them. Collective."""
        if self._try(self._read_clocks, "host clocks were not read at the start of the job"):
            self._try(self._probe_first, "links between hosts were not probed at the start of the job")
        return self._meta

    def read_last(self) -> None:
        """Reads both once more, links only over gloo: the job may use another backend yet. Collective."""
        if self._try(self._read_clocks, "host clocks were not read at the end of the job") and self._on_host:
            self._try(self._probe_last, "links between hosts were not probed at the end of the job")

    def _read_clocks(self) -> RunMeta:
        return replace(self._meta, clock_readings=(*self._meta.clock_readings, *read_clocks(self._group)))

    def _probe_first(self) -> RunMeta:
        if self._on_host:
            return replace(self._meta, link_readings=probe_links(self._group))
        if not self._training_waits:
            return self._note_unprobed_links()
        place = self._context.world.device
        readings = probe_device_links(self._group, TorchDevice(place), place, limit_s=FIRST_PROBE_S)
        return replace(self._meta, link_readings=readings)

    def _note_unprobed_links(self) -> RunMeta:
        if len({info.host for info in self._context.streams.ranks}) == 1:
            return self._meta
        note = f"links between hosts were not probed: training uses {self._context.world.backend} meanwhile"
        return replace(self._meta, notes=(*self._meta.notes, note))

    def _probe_last(self) -> RunMeta:
        return replace(self._meta, last_link_readings=probe_links(self._group, limit_s=LAST_PROBE_S))

    def _try(self, read: Callable[[], RunMeta], failure: str) -> bool:
        """Adds readings, at once: the job may be stopped during the next. A failure costs a note; the others have gone
        or do not answer, so they are asked nothing more.

        Returns:
            Whether it worked.
        """
        try:
            meta, works = read(), True
        except RuntimeError as error:
            note = f"{failure}: {read_first_line(error)}"
            meta, works = replace(self._meta, notes=(*self._meta.notes, note)), False
        if self._context.world.rank == 0 and meta != self._meta:
            try:
                write_meta(self._context.folder, meta)
            except OSError as error:
                self._step_writer.refuse("run.json was not brought up to date", error)
        self._meta = meta
        return works
