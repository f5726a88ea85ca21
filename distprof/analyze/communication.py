"""What did the ranks send to each other?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.statistics import as_numbers
from distprof.facts.run import KIND_FACTS, KINDS
from distprof.report.report import CommunicationReport


def report_communication(measured_steps: MeasuredSteps) -> list[CommunicationReport]:
    """Every kind of collective that some rank issued in the counted steps, in the order of `KINDS`."""
    found = ({fact: measured_steps.mean(f"{kind}_{fact}") for fact in KIND_FACTS} for kind in KINDS)
    return [
        CommunicationReport(
            kind=kind.value,
            count_per_step=as_numbers(means["count"]),
            bytes_per_step=as_numbers(means["bytes"]),
            busy_host_ns=as_numbers(means["busy_host_ns"]),
            exposed_host_ns=as_numbers(means["exposed_host_ns"]),
            overlapped_host_ns=as_numbers(np.maximum(means["busy_host_ns"] - means["exposed_host_ns"], 0)),
            busy_device_ns=as_numbers(means["busy_device_ns"]),
            exposed_device_ns=as_numbers(means["exposed_device_ns"]),
            overlapped_device_ns=as_numbers(np.maximum(means["busy_device_ns"] - means["exposed_device_ns"], 0)),
        )
        for kind, means in zip(KINDS, found, strict=True)
        if np.nan_to_num(means["count"]).any()
    ]
