"""What other settings of the same job would do to its steps, as parts of a report."""

from __future__ import annotations

import dataclasses
import enum

from distprof.report.wait_report import Estimate


class ChangedSetting(enum.StrEnum):
    """What a forecast changes, by its name in the configuration."""

    BUCKET_MB = "bucket_mb"
    """The size at which DDP closes a bucket of gradients."""
    GRAD_ACCUM = "grad_accum"
    """Micro-steps per optimizer step."""
    RESHARD_AFTER_FORWARD = "reshard_after_forward"
    """Whether FSDP2 frees gathered parameters after forward, and gathers them again in backward."""


class NoForecast(enum.StrEnum):
    """Why there is none."""

    NOT_RECORDED = "not_recorded"
    """The collectives of single steps are not known on the headline clock."""
    OTHER_ORDER = "other_order"
    """They are not issued as DDP, or FSDP2, issues them."""
    ENDS_UNSEEN = "ends_unseen"
    """It was not seen when they end."""
    FEW = "few"
    """There are fewer than three of them in a step."""
    ALIKE = "alike"
    """Their sizes do not vary enough to tell latency from bandwidth."""
    NEGATIVE = "negative"
    """Fitted latency or bandwidth is below zero by more than its error."""
    INEXACT = "inexact"
    """The fit's relative error is too large."""
    MISSED = "missed"
    """With fitted transfers, the replay misses the recorded steps."""
    UNSURE = "unsure"
    """The error of the answer is too large."""
    TOO_SMALL = "too_small"
    """There would be too many of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TransferFit:
    """How long a group's collectives take by their size: latency + bytes / bandwidth."""

    kind: str
    group: str
    latency_ns: float
    bytes_per_s: float
    """Of the buffers; what crosses a link is another number."""
    error_ratio: float
    """Standard error of the usual transfer, over that transfer."""
    num_transfers: int
    """Of one step."""
    min_bytes: int
    max_bytes: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The recorded steps, replayed with another setting."""

    setting: ChangedSetting
    value: float
    """MiB, or micro-steps; 0: parameters are not resharded."""
    step_ns: float
    """Mean step that would result."""
    saved_ratio: Estimate
    """Share of the mean step; negative: it would be longer. The interval holds the fit's error too."""
    tokens_per_s: float | None
    rank_hours_per_day: float | None
    """What the present setting costs per day of this job. None: nothing would be saved, or a step does more work."""
    num_buckets: int | None
    """Of a bucket size: into how many the gradients are divided. None: another setting."""
    interpolated: bool
    """A bucket size below the recorded one: when its gradients are ready is interpolated between recorded buckets."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A setting for which there is no forecast."""

    setting: ChangedSetting
    values: tuple[float, ...]
    """As in `Forecast`. Empty: all of them."""
    reason: NoForecast


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """Forecasts, what they are based on, and what could not be foretold."""

    forecasts: tuple[Forecast, ...]
    fits: tuple[TransferFit, ...]
    unanswered: tuple[Unanswered, ...]
