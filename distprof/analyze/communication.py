"""What did the ranks send to each other?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.statistics import as_numbers
from distprof.facts.run import KINDS
from distprof.report.report import CommunicationReport


def report_communication(measured_steps: MeasuredSteps) -> list[CommunicationReport]:
    """Every kind of collective that some rank issued in the counted steps, in the order of `KINDS`."""
    reports = []
    for kind in KINDS:
        count = measured_steps.mean(f"{kind}_count")
        if not np.any(count[np.isfinite(count)]):
            continue
        busy_ns, exposed_ns = (
            measured_steps.mean(f"{kind}_busy_host_ns"),
            measured_steps.mean(f"{kind}_exposed_host_ns"),
        )
        on_device_ns, waited_ns = (
            measured_steps.mean(f"{kind}_busy_device_ns"),
            measured_steps.mean(f"{kind}_exposed_device_ns"),
        )
        reports.append(
            CommunicationReport(
                kind=kind.value,
                count_per_step=as_numbers(count),
                bytes_per_step=as_numbers(measured_steps.mean(f"{kind}_bytes")),
                busy_host_ns=as_numbers(busy_ns),
                exposed_host_ns=as_numbers(exposed_ns),
                overlapped_host_ns=as_numbers(np.maximum(busy_ns - exposed_ns, 0)),
                busy_device_ns=as_numbers(on_device_ns),
                exposed_device_ns=as_numbers(waited_ns),
                overlapped_device_ns=as_numbers(np.maximum(on_device_ns - waited_ns, 0)),
            )
        )
    return reports
