"""What did the ranks send to each other?"""

from __future__ import annotations

import numpy as np

from distprof.analyze.basis import Basis
from distprof.analyze.spread import as_numbers
from distprof.report import CommunicationReport
from distprof.run import KINDS


def report_communication(basis: Basis) -> list[CommunicationReport]:
    """Every kind of collective that some rank issued in the counted steps, in the order of `KINDS`."""
    reports = []
    for kind in KINDS:
        count = basis.mean(f"{kind}_count")
        if not np.any(count[np.isfinite(count)]):
            continue
        reports.append(
            CommunicationReport(
                kind=kind.value,
                count_per_step=as_numbers(count),
                bytes_per_step=as_numbers(basis.mean(f"{kind}_bytes")),
                busy_host_ns=as_numbers(basis.mean(f"{kind}_busy_host_ns")),
            )
        )
    return reports
