"""Which ranks do other work than most, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from distprof.facts.roles import detect_other_work, read_work
from tests.factories import MS, make_run

TRAINS, EVALUATES, UPDATES, UNKNOWN = (3.0, 1.0), (0.0, 0.0), (0.0, 1.0), (np.nan, np.nan)


@pytest.mark.parametrize(
    ("works", "other"),
    [
        ([TRAINS, TRAINS, EVALUATES], [False, False, True]),
        ([TRAINS, EVALUATES], [False, False]),  # as many of each
        ([EVALUATES, EVALUATES, TRAINS], [False] * 3),  # most do not train
        ([UPDATES, (3.0, 0.0), (3.0, 0.0)], [True, False, False]),  # a parameter server
        ([TRAINS, UNKNOWN, UNKNOWN], [False] * 3),
        ([TRAINS] * 3, [False] * 3),
    ],
)
def test_the_work_of_most_is_the_usual_one(works: list[tuple[float, float]], other: list[bool]) -> None:
    backward, optimizer = (np.array([[work[place]] for work in works]) * MS for place in (0, 1))
    run = make_run(num_ranks=len(works), host_ns={"forward": MS, "backward": backward, "optimizer": optimizer})
    assert detect_other_work(list(run.rows)).tolist() == other


def test_a_step_that_failed_or_ran_without_instruments_says_nothing() -> None:
    run = make_run(host_ns={"forward": MS}, columns={"failed": 1})
    assert read_work(run.rows[0]) is None
    assert read_work(make_run(host_ns={"forward": MS}, columns={"shadow": 1}).rows[0]) is None
