"""What a report says of the cost of recording. By itself, since a job needs no more of a report while it runs."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OverheadReport:
    """What recording costs: recorded steps compared with the unrecorded (shadow) steps between them."""

    clock: str
    """"host" or, of a job on GPUs, "device"."""
    ratio: float
    """Median recorded step time over the median without recording, less 1; below 0 only through noise."""
    low_ratio: float
    """Lower end of the 95 % interval of the median; exact, whatever the noise."""
    high_ratio: float
    shadow_steps: int
    """Number of unrecorded steps that it is based on."""
