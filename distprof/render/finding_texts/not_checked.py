"""Why a rule could not be checked, in words."""

from __future__ import annotations

from distprof.analyze.traces.findings.siblings import MIN_SIBLINGS
from distprof.render.finding_texts.parts import name_some
from distprof.render.units import format_ratio
from distprof.report.finding_report import Lack, NotChecked

LACKS: dict[Lack, str] = {
    Lack.NO_DEVICE: "no device activity was traced",
    Lack.DEVICE_NOT_UNDERSTOOD: "no device activity was understood (the coverage says what there is)",
    Lack.NO_CALLS: "no calls of the device's API were traced",
    Lack.CALLS_NOT_UNDERSTOOD: "no calls of the device's API were understood (the coverage says what there is)",
    Lack.NO_STEPS: "no steps are known",
    Lack.NO_RANGES: "no named ranges were traced",
    Lack.NO_SIBLINGS: f"there are no {MIN_SIBLINGS} ranges whose names differ in one number only",
    Lack.NO_LAUNCHES: "the launches of what ran on the device are not in the trace",
    Lack.NO_RANGE_LAUNCHES: "what the ranges launched is not in the trace",
    Lack.NO_COLLECTIVES: "no collective ran on a device (gloo's run on the host)",
    Lack.NO_PRODUCTS: "hardly any kernel is a matrix product by its name",
    Lack.UNKNOWN_KERNELS: "{share} of compute is in kernels whose names do not tell what they are for",
    Lack.UNKNOWN_PRECISION: "{share} of GPU time is matrix products whose names do not tell the precision",
    Lack.UNKNOWN_DEVICE: "the trace does not tell what kind of device it is",
    Lack.NO_MEMORY_SIZE: "no rank has both the size of its device's memory and its peak use",
    Lack.COPIES_TOO_LONG: "copies on {ranks} take longer than the steps that issued them",
    Lack.CALLS_TOO_LONG: "calls that wait, on {ranks}, take longer than the steps",
}


def word_lack(item: NotChecked) -> str:
    """The data that a rule lacked."""
    return LACKS[item.lack].format(share=format_ratio(item.share_ratio), ranks=name_some(item.ranks))
