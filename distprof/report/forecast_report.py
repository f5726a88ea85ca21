"""What other settings of the same job would do to its steps, as parts of a report."""

from __future__ import annotations

import dataclasses
import enum

from distprof.report.wait_report import Estimate


class ChangedSetting(enum.StrEnum):
    """What a forecast changes, by its name in the configuration."""

    GRAD_ACCUM = "grad_accum"
    """Micro-steps per optimizer step."""
    RESHARD_AFTER_FORWARD = "reshard_after_forward"
    """Whether FSDP2 frees gathered parameters after forward, and gathers them again in backward."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The recorded steps, replayed with another setting."""

    setting: ChangedSetting
    value: float
    """Micro-steps; 0: parameters are not resharded."""
    step_ns: float
    """Mean step that would result."""
    saved_ratio: Estimate
    """Share of the mean step; negative: it would be longer."""
    tokens_per_s: float | None
    rank_hours_per_day: float | None
    """What the present setting costs per day of this job. None: nothing would be saved, or a step does more work."""
