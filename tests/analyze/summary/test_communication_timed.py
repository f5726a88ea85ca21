"""What collectives that were timed on the device tell about communication: busy, exposed and overlapped."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.arrays import FloatArray
from distprof.facts.run import Clock, CollectiveKind, Collectives, Phase
from tests.factories import MS, make_run

REDUCE, SCATTER = CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER


def make_table(
    arrival_ms: list[float], end_ms: list[float], exposed_ms: list[float], kind: CollectiveKind
) -> Collectives:
    def spread(values: list[float]) -> FloatArray:
        return np.broadcast_to(np.array(values) * float(MS), (2, 2, len(values))).copy()

    return Collectives(
        group=f"group of {kind}", ranks=np.arange(2), size=2, kinds=(kind,) * len(arrival_ms),
        phases=(Phase.BACKWARD,) * len(arrival_ms), sizes_bytes=(64,) * len(arrival_ms), steps=np.array([1, 2]),
        arrival_ns=spread(arrival_ms), end_ns=spread(end_ms), exposed_ns=spread(exposed_ms), clock=Clock.DEVICE,
        left_ns=np.full((2, 2, len(arrival_ms)), np.nan),
    )  # fmt: skip


def test_busy_is_the_union_from_where_each_begins_and_overlapped_what_compute_did_not_wait_for() -> None:
    run = make_run(num_ranks=2, num_steps=4)
    for kind in (REDUCE, SCATTER):
        run.column(f"{kind}_count")[:] = 2
    # The second is ready at 3 but begins when the first is over, at 5: 1 to 5, 5 to 6, 9 to 10.
    reduce = make_table([1, 3, 9], [5, 6, 10], [0, 0, 1.5], REDUCE)
    scatter = make_table([1], [2], [0], SCATTER)
    scatter.end_ns[1, 1, 0] = np.nan  # rank 1 saw it in one of the two steps only
    scatter.end_ns[0] = np.nan
    report = analyze(structs.replace(run, device_collectives=(reduce, scatter)))
    told = {item.kind: item for item in report.communication}
    assert told[REDUCE].busy_device_ns == (6 * MS, 6 * MS)
    assert told[REDUCE].overlapped_device_ns == (4.5 * MS, 4.5 * MS)
    assert told[SCATTER].busy_device_ns == (None, 1 * MS) and told[SCATTER].overlapped_device_ns == (None, 1 * MS)


def test_without_timed_collectives_the_device_tells_nothing() -> None:
    run = make_run(num_ranks=2, num_steps=4)
    run.column(f"{REDUCE}_count")[:] = 1
    (reduce,) = analyze(run).communication
    assert reduce.busy_device_ns == (None, None) == reduce.overlapped_device_ns
