"""What did the ranks send to each other?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.measured_steps import MeasuredSteps
from distprof.analyze.statistics import as_numbers
from distprof.facts.run import KINDS, CollectiveKind
from distprof.report.report import CommunicationReport


def report_communication(measured_steps: MeasuredSteps) -> list[CommunicationReport]:
    """Every kind of collective that some rank issued in the counted steps, in the order of `KINDS`."""
    counted = [kind for kind in KINDS if np.nan_to_num(measured_steps.mean(f"{kind}_count")).any()]
    return [_report_kind(measured_steps, kind) for kind in counted]


def _report_kind(measured_steps: MeasuredSteps, kind: CollectiveKind) -> CommunicationReport:
    busy_host_ns, exposed_host_ns, busy_device_ns, exposed_device_ns = (
        measured_steps.mean(f"{kind}_{fact}_ns")
        for fact in ("busy_host", "exposed_host", "busy_device", "exposed_device")
    )
    return CommunicationReport(
        kind=kind.value,
        count_per_step=as_numbers(measured_steps.mean(f"{kind}_count")),
        bytes_per_step=as_numbers(measured_steps.mean(f"{kind}_bytes")),
        busy_host_ns=as_numbers(busy_host_ns),
        exposed_host_ns=as_numbers(exposed_host_ns),
        overlapped_host_ns=as_numbers(np.maximum(busy_host_ns - exposed_host_ns, 0)),
        busy_device_ns=as_numbers(busy_device_ns),
        exposed_device_ns=as_numbers(exposed_device_ns),
        overlapped_device_ns=as_numbers(np.maximum(busy_device_ns - exposed_device_ns, 0)),
    )
