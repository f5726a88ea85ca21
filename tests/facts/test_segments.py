"""Segments in arrays are what was put in."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from distprof.facts.run import PHASES
from distprof.facts.segments import RunSegments, Segments, tabulate

STEPS = st.integers(0, 2**53)
KEPT = st.builds(
    lambda begin_ns, each, truncated: Segments(
        begin_ns=begin_ns, codes=tuple(code for code, _ in each), durations_ns=tuple(ns for _, ns in each),
        truncated=truncated,
    ),
    st.integers(0, 2**63 - 2),
    st.lists(st.tuples(st.integers(0, len(PHASES) - 1), st.integers(0, 2**53)), max_size=5),
    st.booleans(),
)  # fmt: skip


@given(st.dictionaries(STEPS, KEPT, max_size=6), STEPS)
def test_a_table_has_what_was_put_in_and_nothing_else(kept: dict[int, Segments], other: int) -> None:
    table = pickle.loads(pickle.dumps(tabulate(kept)))
    assert table == kept and [*table] == sorted(kept) == table.steps.tolist()
    assert table.counts.tolist() == [len(kept[step].codes) for step in sorted(kept)]
    assert (other in table) == (other in kept) and table.get(other) == kept.get(other)
    assert "1" not in table and None not in table


def test_a_run_has_its_ranks_segments() -> None:
    first, second = (Segments(begin_ns=at, codes=(1,), durations_ns=(5,)) for at in (10, 20))
    run = RunSegments({0: tabulate({4: first}), 2: tabulate({3: second, 4: first})})
    assert dict(run) == {(0, 4): first, (2, 3): second, (2, 4): first} and len(run) == 3
    assert (1, 4) not in run and (0, 3) not in run and "x" not in run and run.get((1, 4)) is None
