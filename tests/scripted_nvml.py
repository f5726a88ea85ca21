"""An NVML that reads from a script: power curves whose integral is known, clocks, and what limits them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from msgspec import Struct

from distprof.facts.gpu import GpuSpan, RankGpu
from distprof.record.device.gpu_sampler import NvmlCard, SpanMaker
from distprof.storage.gpu_records import GpuReader, encode_gpu

MAX_MHZ, CAP_MW = 1980, 700_000
"""As an H200 answers."""
IDLE_BIT, APPLICATION_BIT, POWER_BIT, HEAT_BIT = 0x1, 0x2, 0x4, 0x20


class NvmlError(Exception):
    pass


class HandClock:
    """A host's monotonic clock that a test sets."""

    def __init__(self, now_ns: int = 10**15) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class ScriptedCard(Struct, kw_only=True):
    """Its power is a sum of waves above a base."""

    base_w: float = 400.0
    waves: Sequence[tuple[float, float, float]] = ()
    """Amplitude W, period s, phase."""
    sm_clock_mhz: float = MAX_MHZ
    limits: int = 0
    counts_energy: bool = True

    def power_w(self, at_s: float) -> float:
        return self.base_w + sum(a * math.sin(2 * math.pi * at_s / period + phase) for a, period, phase in self.waves)

    def energy_j(self, at_s: float) -> float:
        """Since moment 0, in closed form."""
        return self.base_w * at_s + sum(
            a * period / (2 * math.pi) * (math.cos(phase) - math.cos(2 * math.pi * at_s / period + phase))
            for a, period, phase in self.waves
        )


def make_scripted_nvml(cards: Mapping[str, ScriptedCard], clock: HandClock, **changes: Any) -> Any:
    """A module like pynvml; moment 0 of the cards is the clock's value now. A card is its own handle."""
    begin_ns = clock.now_ns

    def read_s() -> float:
        return (clock.now_ns - begin_ns) / 1e9

    def find(uuid: str) -> ScriptedCard:
        if uuid not in cards:
            raise NvmlError("Not Found")
        return cards[uuid]

    def count(card: ScriptedCard) -> int:
        if not card.counts_energy:
            raise NvmlError("Not Supported")
        return round(1e3 * card.energy_j(read_s())) + 10**9

    facts: dict[str, Any] = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "NVMLError": NvmlError, "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0, "nvmlDeviceGetHandleByUUID": find,
        "nvmlDeviceGetPowerUsage": lambda card: round(1e3 * card.power_w(read_s())),
        "nvmlDeviceGetTotalEnergyConsumption": count,
        "nvmlDeviceGetClockInfo": lambda card, kind: round(card.sm_clock_mhz),
        "nvmlDeviceGetMaxClockInfo": lambda card, kind: MAX_MHZ,
        "nvmlDeviceGetTemperature": lambda card, kind: 41,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda card: card.limits,
        "nvmlDeviceGetEnforcedPowerLimit": lambda card: CAP_MW,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda card: 5, "nvmlDeviceGetMaxPcieLinkGeneration": lambda card: 5,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda card: 16, "nvmlDeviceGetMaxPcieLinkWidth": lambda card: 16,
    }  # fmt: skip
    return SimpleNamespace(**{**facts, **changes})


def record_gpu(
    nvml: Any, card: ScriptedCard, clock: HandClock, times_ns: Sequence[int], window_s: float
) -> RankGpu | None:
    """What a run folder holds of a card that was sampled at these moments."""
    nvml_card, maker, reader = NvmlCard(nvml, card, clock), SpanMaker(window_s), GpuReader()

    def write(span: GpuSpan | None) -> None:
        if span is not None:
            assert reader.read(json.loads(json.dumps(encode_gpu(nvml_card.caps, [span]))))

    for clock.now_ns in times_ns:
        write(maker.add(nvml_card.sample()))
    write(maker.end())
    parts = reader.finish()
    return parts[0] if parts else None
