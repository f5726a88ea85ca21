"""Samples a rank's GPU through NVML, about once a window, on a thread that nothing waits for.

NVML asks the driver, which may take long or not answer at all. So it has a thread of its own: the gather thread takes
the spans that are there. A call that takes long makes the next sample later, such that sampling takes at most
`MAX_BUSY_RATIO` of the time, and the first error of a query that had been answered ends the sampling with a note.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import or_
from typing import Any, NamedTuple

from distprof.error_boundary import ErrorBoundary
from distprof.facts.gpu import LIMIT_BITS, UNREAD, GpuCaps, GpuReading, GpuSpan
from distprof.record.device.rank_info import look_up_card

MAX_BUSY_RATIO = 0.01
CLOSE_LIMIT_S = 0.2
"""How long the end of a rank waits for the last sample."""
MAX_GAP = 5
"""Windows between two samples of power beyond which the energy between them is not known."""
STALE = 5
"""Windows after which a sample no longer says how the GPU is."""
SPANS_PER_LENGTH, MAX_DOUBLINGS = 2048, 6
"""After so many spans the next ones are twice as long, so many times: 1.5 MB in 36 hours at one window a second, and
then 170 kB a day."""
KEPT_SPANS = 4096
"""That nobody has taken yet."""


class GpuSample(NamedTuple):
    """One look at a card, in NVML's units. None: the card does not say."""

    at_ns: int
    power_mw: int | None
    energy_mj: int | None
    sm_clock_mhz: int | None
    temperature_c: int | None
    limits: int | None
    pcie_generation: int | None
    pcie_lanes: int | None


class NvmlCard:
    """A card as NVML shows it."""

    def __init__(self, pynvml: Any, card: Any, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Finds out what the card answers: not every card supports every query, nor every driver."""
        self._now_ns = now_ns

        def query(*names: str, of: tuple[Any, ...] = ()) -> Callable[[], int | None]:
            """The first of these functions that is there and answers."""
            for name in names:
                try:
                    getattr(pynvml, name)(card, *of)
                except (AttributeError, pynvml.NVMLError):
                    continue
                return lambda: int(getattr(pynvml, name)(card, *of))
            return lambda: None

        clock = (pynvml.NVML_CLOCK_SM,)
        self._queries = (
            query("nvmlDeviceGetPowerUsage"), query("nvmlDeviceGetTotalEnergyConsumption"),
            query("nvmlDeviceGetClockInfo", of=clock),
            query("nvmlDeviceGetTemperature", of=(pynvml.NVML_TEMPERATURE_GPU,)),
            query("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            query("nvmlDeviceGetCurrPcieLinkGeneration"), query("nvmlDeviceGetCurrPcieLinkWidth"),
        )  # fmt: skip
        first = self.sample()
        self.answers = any(value is not None for value in first[1:])
        """Whether it says anything."""
        self.caps = GpuCaps(
            sm_clock_mhz=query("nvmlDeviceGetMaxClockInfo", of=clock)(),
            power_mw=query("nvmlDeviceGetEnforcedPowerLimit")(),
            pcie_generation=query("nvmlDeviceGetMaxPcieLinkGeneration")(),
            pcie_lanes=query("nvmlDeviceGetMaxPcieLinkWidth")(), counts_energy=first.energy_mj is not None,
        )  # fmt: skip

    def sample(self) -> GpuSample:
        """One look. Raises pynvml.NVMLError if something that was answered is no longer."""
        begin_ns = self._now_ns()
        values = [query() for query in self._queries[:2]]
        at_ns = (begin_ns + self._now_ns()) // 2
        return GpuSample(at_ns, *values, *(query() for query in self._queries[2:]))


class SpanMaker:
    """Makes spans of samples, longer ones as the job goes on; integrals keep every sample."""

    def __init__(self, window_s: float) -> None:
        """``window_s``: about the time between two samples."""
        self._window_ns, self._made = window_s * 1e9, 0
        self._samples: list[GpuSample] = []  # of the span that has begun; each begins at the last of the one before

    def add(self, sample: GpuSample) -> GpuSpan | None:
        """Takes the next sample; returns a span if that ends one."""
        if self._samples and sample.at_ns <= self._samples[-1].at_ns:
            return None
        self._samples.append(sample)
        doublings = min(self._made // SPANS_PER_LENGTH, MAX_DOUBLINGS)
        last_after_ns = sample.at_ns - self._samples[0].at_ns + self._window_ns / 2
        return self.end() if last_after_ns > self._window_ns * 2**doublings else None

    def end(self) -> GpuSpan | None:
        """Ends the span that has begun. None: it has no length."""
        if len(self._samples) < 2:
            return None
        first, *rest = self._samples
        length_s = (rest[-1].at_ns - first.at_ns) / 1e9
        power_mj = self._integrate("power_mw", MAX_GAP * self._window_ns)
        energy_mj = power_mj if first.energy_mj is None else _count_energy(first, rest[-1])
        cycles = self._integrate("sm_clock_mhz")
        self._samples = rest[-1:]
        self._made += 1
        return GpuSpan(
            begin_ns=first.at_ns, length_ns=rest[-1].at_ns - first.at_ns,
            energy_mj=None if energy_mj is None else round(energy_mj),
            sm_clock_mhz=None if cycles is None else round(cycles / length_s),
            temperature_c=_max(rest, "temperature_c"), limits=_join_limits([sample.limits for sample in rest]),
            pcie_generation=_max(rest, "pcie_generation"), pcie_lanes=_max(rest, "pcie_lanes"),
        )  # fmt: skip

    def _integrate(self, name: str, max_gap_ns: float = math.inf) -> float | None:
        """The integral over seconds by the trapezoid rule. None: a sample lacks the quantity, or two are far
        apart."""
        total = 0.0
        for before, after in pairwise(self._samples):
            values, step_ns = (getattr(before, name), getattr(after, name)), after.at_ns - before.at_ns
            if None in values or step_ns > max_gap_ns:
                return None
            total += sum(values) / 2 * step_ns / 1e9
        return total


def _count_energy(first: GpuSample, last: GpuSample) -> int | None:
    """By the card's counter; None: it has been set back."""
    if first.energy_mj is None or last.energy_mj is None or last.energy_mj < first.energy_mj:
        return None
    return last.energy_mj - first.energy_mj


def _max(samples: Sequence[GpuSample], name: str) -> int | None:
    return max((value for sample in samples if (value := getattr(sample, name)) is not None), default=None)


def _join_limits(limits: Sequence[int | None]) -> int | None:
    """The bits that at least half of the samples have."""
    known = [bits for bits in limits if bits is not None]
    if not known:
        return None
    every = functools.reduce(or_, LIMIT_BITS.values())
    singles = [1 << place for place in range(every.bit_length()) if every >> place & 1]
    return sum(bit for bit in singles if 2 * sum(bool(bits & bit) for bits in known) >= len(known))


class GpuSampler(threading.Thread):
    """The thread that samples one rank's GPU. `take` and `read_latest` never wait for the driver."""

    def __init__(
        self,
        uuid: str,
        *,
        window_s: float,
        note: Callable[[str], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Prepares the thread; `start` starts it.

        Args:
            uuid: Of the GPU, as torch tells it.
            window_s: Seconds between two samples, unless they take long.
            note: Receives what is not measured, and why, on that thread.
            now_ns: A monotonic clock.
        """
        super().__init__(name="distprof-gpu", daemon=True)
        self._uuid, self._window_s, self._note, self._now_ns = uuid, window_s, note, now_ns
        self._closing = threading.Event()
        self._spans: deque[GpuSpan] = deque(maxlen=KEPT_SPANS)
        self._maker = SpanMaker(window_s)
        self._last: GpuSample | None = None
        self._energy_mj: int | None = 0
        self.caps = GpuCaps()
        """What the card can do, once there are spans."""

    def take(self) -> list[GpuSpan]:
        """The spans that nobody has taken yet."""
        return [self._spans.popleft() for _ in range(len(self._spans))]

    def read_latest(self) -> GpuReading:
        """The last sample, unless it is old."""
        last = self._last
        if last is None or self._now_ns() - last.at_ns > STALE * self._window_s * 1e9:
            return GpuReading()
        counted = None if last.power_mw is None and last.energy_mj is None else self._energy_mj
        known = (last.power_mw, counted, last.sm_clock_mhz, last.temperature_c, last.limits)
        return GpuReading(*(UNREAD if value is None else value for value in known))

    def close(self) -> None:
        """Takes a last sample, if that does not take long, and ends."""
        self._closing.set()
        if self.ident is not None and self is not threading.current_thread():
            self.join(CLOSE_LIMIT_S)

    def run(self) -> None:
        """Samples until it is closed, or the card no longer answers."""
        ErrorBoundary("the GPU's energy, power and clocks are not measured from here on", self._note).run(self._sample)

    def _sample(self) -> None:
        try:
            import pynvml
        except ImportError:
            return  # the snapshot before the first step says so
        pynvml.nvmlInit()
        try:
            card = NvmlCard(pynvml, look_up_card(pynvml, self._uuid)[0], self._now_ns)
            if not card.answers:
                self._note("NVML tells neither power nor clocks of this device")
                return
            self.caps, closing = card.caps, False
            while True:
                begin_s = time.monotonic()
                self._add(card.sample())
                if closing:
                    break
                closing = self._closing.wait(max(self._window_s, (time.monotonic() - begin_s) / MAX_BUSY_RATIO))
        finally:
            if (span := self._maker.end()) is not None:
                self._spans.append(span)
            pynvml.nvmlShutdown()

    def _add(self, sample: GpuSample) -> None:
        span = self._maker.add(sample)
        if span is not None:
            self._spans.append(span)
            both = (self._energy_mj, span.energy_mj)
            self._energy_mj = None if None in both else sum(energy_mj or 0 for energy_mj in both)
        self._last = sample
