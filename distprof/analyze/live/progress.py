"""How far a running job is: its last steps, by rank and in the order in which they came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from distprof.analyze.live.live_metric_means import ElapsedSteps, choose_clock
from distprof.analyze.stats.measured_steps import counts_between, subtract_exposed, sum_exposed
from distprof.config.decode import is_whole
from distprof.facts.arrays import FloatArray
from distprof.facts.roles import detect_other_work
from distprof.facts.run import COLUMN, PHASES, Clock, RankInfo, RunMeta, make_rows
from distprof.facts.stand import RankState
from distprof.report.progress import Progress, RankEnd, RankProgress

MEAN_STEPS = 20
"""Steps in the means: few enough to show what is so now, and enough to hide what every step does."""
MOST_TIMES = 1000
QUIET_S = 60.0
"""How long nobody has written anything before a rank whose end is not known counts as ended, where others are."""
MOST_STEPS = 1 << 40
_WINDOWS = {"kernels": ("kernel_steps", "kernel_from", 1), "modules": ("module_steps", "module_from", 2)}
"""By level: the keys of its window, and the steps that it runs before those that it keeps."""


class RankLook(Struct, frozen=True, kw_only=True):
    """What is seen of a rank at one look."""

    info: RankInfo
    rows: FloatArray
    """Of its last steps, ``[num_steps, ROW_WIDTH]``, in ascending order."""
    fresh_s: float
    """As in `RankProgress`, like the next."""
    place: RankState | None = None


class ProgressMeter:
    """Measures at each look, and remembers the times of steps."""

    def __init__(self) -> None:
        """Has seen no step."""
        self._times_ns: dict[int, float] = {}

    def measure(self, meta: RunMeta, looks: Sequence[RankLook]) -> Progress:
        """The job as of one look at all ranks that have written something."""
        apart = detect_other_work([look.rows for look in looks])
        usual = [look for look, other in zip(looks, apart, strict=True) if not other]
        rows = _align([look.rows for look in usual if len(look.rows)])
        self._remember(rows, between=counts_between(meta))
        done = min((_read_last_step(look.rows) for look in usual), default=-1) + 1
        total = read_total_steps(meta.config)
        interval_ns = _measure_interval(rows)
        left = None if total is None or interval_ns is None else max(total - done, 0)
        recent = rows[:, -MEAN_STEPS:]
        clock = _choose_clock(recent)
        ranks = tuple(_measure_rank(look, clock) for look in looks)
        return Progress(
            name=meta.name, ranks=ranks, world_size=meta.world_size, over=_is_over(ranks, meta.world_size), clock=clock,
            mean_steps=recent.shape[1], steps_done=done, steps_total=total, interval_ns=interval_ns,
            eta_s=None if left is None or interval_ns is None else left * interval_ns / 1e9,
            step_times_ns=tuple(self._times_ns[step] for step in sorted(self._times_ns)),
        )  # fmt: skip

    def _remember(self, rows: FloatArray, *, between: bool) -> None:
        if not rows.shape[1]:
            return
        elapsed_ns = ElapsedSteps(between=between).add(rows)[Clock.HOST]
        steps = rows[0, :, COLUMN["step"]].astype(np.int64).tolist()
        for step, time_ns in list(zip(steps, elapsed_ns.tolist(), strict=True))[1 if self._times_ns else 0 :]:
            if np.isfinite(time_ns):
                self._times_ns.setdefault(step, time_ns)
        for step in sorted(self._times_ns)[:-MOST_TIMES]:
            del self._times_ns[step]


def read_total_steps(config: Mapping[str, Any]) -> int | None:
    """How many steps a job of distprof's own trainer takes, with those of a window at its end. None: another job, or
    what its configuration says makes no sense."""
    train, profile = config.get("train"), config.get("profile")
    if not isinstance(train, Mapping) or not isinstance(profile, Mapping):
        return None
    parts = [train.get("steps"), train.get("warmup_steps")]
    steps, first, before = _WINDOWS.get(str(profile.get("level")), ("", "", 0))
    if steps and profile.get(first) is None:
        parts += [profile.get(steps), before]
    return sum(part for part in parts if part) if all(is_whole(part, MOST_STEPS) for part in parts) else None


def _align(tables: Sequence[FloatArray]) -> FloatArray:
    """The steps that all ranks have of their last ones, ``[num_ranks, num_steps, ROW_WIDTH]``."""
    if not tables:
        return make_rows(0, 0)
    steps = [table[:, COLUMN["step"]] for table in tables]
    common = steps[0]
    for other in steps[1:]:
        common = common[np.isin(common, other)]
    return np.stack([table[np.isin(own, common)] for table, own in zip(tables, steps, strict=True)])


def _read_last_step(rows: FloatArray) -> int:
    """-1: there is none."""
    return int(rows[-1, COLUMN["step"]]) if len(rows) else -1


def _measure_interval(rows: FloatArray) -> float | None:
    each_ns = np.diff(rows[:, :, COLUMN["begin_host_ns"]], axis=1) / np.diff(rows[:, :, COLUMN["step"]], axis=1)
    possible_ns = each_ns[each_ns > 0]  # what a file says may be anything
    return float(np.median(possible_ns)) if len(possible_ns) else None


def _choose_clock(rows: FloatArray) -> Clock:
    return choose_clock(rows.reshape(-1, rows.shape[2])) if rows.size else Clock.HOST


def _measure_rank(look: RankLook, clock: Clock) -> RankProgress:
    info, rows = look.info, look.rows[-MEAN_STEPS:]
    step_ns = rows[:, COLUMN[f"step_{clock}_ns"]]
    own_ns = subtract_exposed(step_ns, sum_exposed(rows, clock))
    return RankProgress(
        rank=info.rank, state=_read_state(info), last_step=_read_last_step(rows) if len(rows) else None,
        fresh_s=look.fresh_s, place=look.place, step_ns=_average(step_ns), own_ns=_average(own_ns),
        phase_ns=tuple(_average(rows[:, COLUMN[f"{phase}_{clock}_ns"]]) for phase in PHASES),
    )  # fmt: skip


def _average(values_ns: FloatArray) -> float | None:
    """Of the steps in which it was measured: a shadow step knows no phases."""
    known_ns = values_ns[np.isfinite(values_ns)]
    return float(known_ns.mean()) if len(known_ns) else None


def _read_state(info: RankInfo) -> RankEnd:
    match info.ended:
        case "completed" | "failed" | "terminated" as ended:
            return ended
        case None if info.last_write is not None and info.last_write.writer_lives is not None:
            return "running" if info.last_write.writer_lives else "gone"
    return "unknown"


def _is_over(ranks: Sequence[RankProgress], world_size: int) -> bool:
    """Whether nobody runs any more. A rank of which that is not known, or that is not there, may still come."""
    states = {rank.state for rank in ranks}
    if not ranks or "running" in states or states == {"unknown"}:
        return False
    sure = "unknown" not in states and len(ranks) == world_size
    return sure or min(rank.fresh_s for rank in ranks) > QUIET_S
