"""The length of the device's queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.traces.reduce.queue import measure_queue
from tests.traces.reduce.synthetic_traces import SyntheticTrace


def test_by_hand() -> None:
    made = SyntheticTrace()
    made.launch("a", 0, 20, 60, call_ns=10)  # in the queue 10 - 60
    made.launch("b", 20, 60, 80, call_ns=10)  # 30 - 80
    made.activity("c", 70, 75)  # nobody launched it: 70 - 75
    made.launch("d", 85, 90, 100, call_ns=30)  # its call returns late: 90 - 100
    found = measure_queue(made.build(), None)
    assert found is not None
    assert (found.mean, found.max) == ((40 + 50 + 5 + 10) / 80, 2)
    assert found.empty_ratio == 10 / 80
    part = measure_queue(made.build(), np.array([[0, 20], [65, 72]]))
    assert part is not None
    assert (part.mean, part.max, part.empty_ratio) == ((10 + 7 + 2) / 27, 2, 10 / 27)


def test_without_launches_nobody_knows() -> None:
    made = SyntheticTrace()
    made.activity("a", 0, 10)
    assert measure_queue(made.build(), None) is None
    assert measure_queue(SyntheticTrace().build(), None) is None
    made.launch("b", 0, 10, 20)
    assert measure_queue(made.build(), np.empty((0, 2), dtype=np.int64)) is None
    idle = measure_queue(made.build(), np.array([[100, 200]]))
    assert idle is not None
    assert (idle.mean, idle.max, idle.empty_ratio) == (0, 0, 1)


@given(
    done=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(0, 9), st.booleans()), min_size=1),
    window=st.tuples(st.integers(-5, 40), st.integers(1, 40)),
)
def test_every_nanosecond(done: list[tuple[int, int, int, bool]], window: tuple[int, int]) -> None:
    made = SyntheticTrace()
    queued = []
    for begin, early, length, known in done:
        if known:
            made.launch("a", begin - early - 2, begin, begin + length, call_ns=2)
        else:
            made.activity("a", begin, begin + length)
        queued.append(range(begin - early if known else begin, begin + length))
    found = measure_queue(made.build(), np.array([[window[0], sum(window)]]))
    if not any(known for *_, known in done):
        assert found is None
        return
    assert found is not None
    depths = [sum(time in span for span in queued) for time in range(window[0], sum(window))]
    assert found.mean == pytest.approx(sum(depths) / len(depths))
    assert found.max == max(depths)
    assert found.empty_ratio == pytest.approx(depths.count(0) / len(depths))
