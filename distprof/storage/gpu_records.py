"""How the spans of a rank's GPU are stored in its stream, and how they are read back without trust.

A line holds what the card can do, and the spans since the line before: ``{"type": "gpu", "caps": [SM clock, power, PCIe
generation, lanes, counts energy], "spans": [[...], ...]}``, numbers as in `distprof.facts.gpu`, null: not measured.
Readers that do not know this kind of record pass it over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import structs

from distprof.config.decode import is_whole
from distprof.facts.gpu import GpuCaps, GpuSpan, RankGpu

MAX_SPANS = 1 << 18
"""Of one file: as many as a writer that joins them makes in centuries."""
_MAX_NUMBER = 1 << 48
"""Above all energies, clocks and powers in their units."""


def encode_gpu(caps: GpuCaps, spans: Sequence[GpuSpan]) -> dict[str, object]:
    """The record of some spans."""
    return {"type": "gpu", "caps": [*structs.astuple(caps)], "spans": [[*span] for span in spans]}


class GpuReader:
    """Collects the spans of one file, record by record."""

    def __init__(self) -> None:
        """Has read nothing so far."""
        self._caps: GpuCaps | None = None
        self._spans: list[GpuSpan] = []

    def read(self, record: dict[str, Any]) -> bool:
        """Keeps a record; False: it is invalid."""
        caps, spans = _read_caps(record.get("caps")), record.get("spans")
        if caps is None or not isinstance(spans, list) or len(self._spans) + len(spans) > MAX_SPANS:
            return False
        after_ns, read = (self._spans[-1].begin_ns + self._spans[-1].length_ns if self._spans else 0), []
        for item in spans:
            span = _read_span(item)
            if span is None or span.begin_ns < after_ns:
                return False
            after_ns = span.begin_ns + span.length_ns
            read.append(span)
        self._caps = caps
        self._spans += read
        return True

    def forget_before(self, begin_ns: float) -> None:
        """Drops the spans that end before this moment; NaN: none."""
        self._spans = [span for span in self._spans if not span.begin_ns + span.length_ns < begin_ns]

    def finish(self) -> tuple[RankGpu, ...]:
        """All spans read. Empty: there are none."""
        if self._caps is None or not self._spans:
            return ()
        return (RankGpu(caps=self._caps, spans=np.array(self._spans, dtype=np.float64)),)


def _read_caps(value: Any) -> GpuCaps | None:
    if not isinstance(value, list) or len(value) != len(GpuCaps.__struct_fields__):
        return None
    clock, power, generation, lanes, counts = value
    if not (all(map(_is_number, (clock, power, generation, lanes))) and isinstance(counts, bool)):
        return None
    return GpuCaps(
        sm_clock_mhz=clock, power_mw=power, pcie_generation=generation, pcie_lanes=lanes, counts_energy=counts
    )


def _read_span(value: object) -> GpuSpan | None:
    if not isinstance(value, list) or len(value) != len(GpuSpan._fields):
        return None
    if not (is_whole(value[0]) and is_whole(value[1]) and value[1] > 0 and all(map(_is_number, value[2:]))):
        return None
    return GpuSpan(*value)


def _is_number(value: object) -> bool:
    return value is None or is_whole(value, _MAX_NUMBER)
