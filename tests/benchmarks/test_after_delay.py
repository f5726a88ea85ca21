"""What happens beside a delay: the table by hand, and options that make no sense."""

from __future__ import annotations

import numpy as np

from benchmarks.__main__ import main
from benchmarks.after_delay import MS, tabulate_delays
from distprof.errors import EXIT_USAGE


def test_the_table_by_hand() -> None:
    """Two ranks work 3 ms; the last one burns 8 more, whereupon the transfer takes 2 instead of 1, or sleeps them."""
    manner = np.repeat([0, 1, 2], 20)
    own = np.array([np.full(60, 3.0), 3 + 8.0 * (manner > 0)])
    transfer = np.where(manner == 1, 2.0, 1.0)
    waits = own.max(axis=0) - own + transfer
    rows = np.stack([np.stack([manner, own[rank] * MS, waits[rank] * MS], axis=1) for rank in (0, 1)])
    assert tabulate_delays(rows).splitlines()[2:] == [
        "| burns | 20 | +9.00 ms | +8.00 ms | +1.00 ms |",
        "| sleeps | 20 | +8.00 ms | +8.00 ms | +0.00 ms |",
    ]


def test_one_rank_waits_for_nobody() -> None:
    assert main(["after-delay", "--ranks", "1"]) == EXIT_USAGE
