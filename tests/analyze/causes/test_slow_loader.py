"""DataLoaders that do not have batches in time, as a cause: by hand, and beside a rank whose loader alone is slow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze import analyze
from distprof.facts.arrays import FloatArray
from distprof.facts.columns import LOADER_FIELDS
from distprof.facts.run import Run
from distprof.render.sections.verdict import describe_verdict
from distprof.render.summary.next_step import describe_next
from distprof.report.loader_report import LoaderLimit, SlowLoader
from distprof.report.report import Report
from distprof.report.wait_report import Cause, VerdictKind
from tests.analyze.causes.test_off_cpu import LEVELS, USUAL, make_readings
from tests.factories import MS, USUAL_NS, make_run

NUM_STEPS = 121
WORKERS: dict[str, Any] = {
    "loader_batches": 1, "loader_workers": 2, "loader_prefetch": 2, "worker_batches": 1, "worker_host_ns": 240 * MS,
    "worker_collate_host_ns": 60 * MS, "worker_cpu_ns": 12 * MS,
}  # fmt: skip
"""Two workers, which have a batch every 120 ms."""
NONE: dict[str, Any] = {
    "loader_batches": 1, "worker_batches": 1, "worker_host_ns": 20 * MS, "worker_cpu_ns": 2 * MS,
}  # fmt: skip
"""The training thread makes a batch in 20 ms."""


def make_job(waits_ns: Any, loader: dict[str, Any], *, num_ranks: int = 4, ahead_ns: float | None = None) -> Run:
    """Ranks that wait for their loaders in data, and for the last of them in all_reduce. A step takes 100 ms else.

    Args:
        waits_ns: By rank and step, in a shape that fits.
        loader: Columns of it that are not 0, by rank in a shape that fits.
        num_ranks: Of the job.
        ahead_ns: By how much hosts are ahead of their devices, which then wait for so much less. None: there are no
            devices.
    """
    noise_ns = np.random.default_rng(3).normal(0, 0.1 * MS, (num_ranks, NUM_STEPS))
    behind_ns: FloatArray = noise_ns + np.broadcast_to(np.asarray(waits_ns, dtype=float), noise_ns.shape)
    own_ns: dict[str, Any] = {name: np.broadcast_to(np.float64(ns), noise_ns.shape) for name, ns in USUAL_NS.items()}
    own_ns["data"] = own_ns["data"] + behind_ns
    own_ns["all_reduce"] = own_ns["all_reduce"] + behind_ns.max(axis=0) - behind_ns
    columns = dict.fromkeys(LOADER_FIELDS, 0.0) | {"data_loader_host_ns": waits_ns} | loader
    device_ns = None
    if ahead_ns is not None:
        device_ns = own_ns | {"data": np.maximum(own_ns["data"] - ahead_ns, 0.1 * MS)}
    return make_run(
        num_ranks=num_ranks, num_steps=NUM_STEPS, host_ns=own_ns, device_ns=device_ns,
        columns=columns if loader else None,
    )  # fmt: skip


def read_loader(report: Report) -> SlowLoader:
    assert report.verdict.loader is not None, report.verdict
    return report.verdict.loader


def list_kinds(report: Report) -> list[VerdictKind]:
    assert report.causes is not None
    return [cause.kind for cause in report.causes.causes]


def test_workers_that_are_too_few_by_hand() -> None:
    """A batch every 120 ms, and a step of 100 ms: 20 of 120 ms. Three workers would have one every 80 ms."""
    report = analyze(make_job(20 * MS, WORKERS))
    verdict, loader = report.verdict, read_loader(report)
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.critical) == (
        VerdictKind.SLOW_LOADER, None, "data", True,
    )  # fmt: skip
    assert verdict.lost_ratio is not None
    assert verdict.lost_ratio.value == pytest.approx(20 / 120, rel=0.02)
    assert loader.step_ns == pytest.approx(100 * MS, rel=0.01) and loader.wait_ns == pytest.approx(20 * MS)
    assert (loader.batch_ns, loader.collate_ns, loader.ready) == (240 * MS, 60 * MS, 0)
    assert (loader.limit, loader.workers_needed) == (LoaderLimit.WORKERS, 3)
    sentence = describe_verdict(report)
    assert "each rank's 2 workers need 240.0 ms for a batch (60.0 ms of it to collate)" in sentence
    assert "17 % shorter" in sentence
    assert "num_workers=3 (now 2)" in describe_next(report)
    assert any(item.change == "batches of the loaders in time" for item in report.what_if)


@pytest.mark.parametrize(("ahead_ms", "taken_ms", "step_ms"), [(10, 20, 110), (25, 5, 95), (40, 0, 90.1)])
def test_a_device_waits_for_what_its_host_is_not_ahead_by(ahead_ms: float, taken_ms: float, step_ms: float) -> None:
    """Phase data takes the device 30 ms less what the host is ahead by, of which 20 ms at most are the loader's."""
    report = analyze(make_job(20 * MS, WORKERS, ahead_ns=ahead_ms * MS))
    assert report.verdict.clock == "device"
    assert (report.verdict.kind is VerdictKind.SLOW_LOADER) == (taken_ms > 0)
    if taken_ms:
        assert report.verdict.lost_ratio is not None
        assert report.verdict.lost_ratio.value == pytest.approx(taken_ms / step_ms, abs=0.005)


def test_no_workers_by_hand() -> None:
    """The process makes a batch in 20 of 120 ms; a worker has one every 20 ms, and brings it in 1.3 ms, give or take
    as much."""
    report = analyze(make_job(20 * MS, NONE))
    verdict, loader = report.verdict, read_loader(report)
    assert verdict.kind is VerdictKind.SLOW_LOADER and verdict.lost_ratio is not None
    assert verdict.lost_ratio.value == pytest.approx(18.7 / 120, abs=0.002)
    assert verdict.lost_ratio.low < 17.4 / 120 + 0.001 and verdict.lost_ratio.high > 20 / 120 - 0.001
    assert (loader.limit, loader.workers_needed, loader.prefetch, loader.ready) == (LoaderLimit.WORKERS, 1, None, None)
    assert "without workers, the training process needs 20.0 ms for a batch" in describe_verdict(report)


def test_batches_that_are_made_quickly_need_no_workers() -> None:
    report = analyze(make_job(2 * MS, NONE | {"worker_host_ns": 2 * MS}))
    assert VerdictKind.SLOW_LOADER not in list_kinds(report)


@pytest.mark.parametrize("columns", [{}, {"loader_batches": np.nan}], ids=["older", "no-loader"])
def test_without_a_recording_of_it_no_loader_is_named(columns: dict[str, Any]) -> None:
    report = analyze(make_job(20 * MS, columns))
    assert VerdictKind.SLOW_LOADER not in list_kinds(report) and report.verdict.loader is None


@given(
    wait_ms=st.floats(2, 60), rank=st.integers(0, 3), workers=st.sampled_from([0, 2]),
    share=st.sampled_from([0.0, 0.2, 1.0]),
)  # fmt: skip
@settings(max_examples=16, deadline=None)
def test_only_what_ranks_have_in_common_is_taken_from_a_rank(
    wait_ms: float, rank: int, workers: int, share: float
) -> None:
    """One rank's loader is slower: the rank is named, as if the others' waits, a share of its own, were not there."""
    waits_ns = np.full((4, 1), share * wait_ms * MS)
    waits_ns[rank] = wait_ms * MS
    columns = (
        WORKERS | {"worker_host_ns": 2 * (100 * MS + waits_ns)} if workers else NONE | {"worker_host_ns": waits_ns}
    )
    if not workers:
        columns["worker_cpu_ns"] = waits_ns / 10
    report = analyze(make_job(waits_ns, columns))
    assert report.causes is not None
    named = {cause.kind: cause for cause in report.causes.causes}
    common_ms = share * wait_ms
    if not workers or common_ms == 0.0 or common_ms >= 1.0:  # below that, it is as chance has it
        assert (VerdictKind.SLOW_LOADER in named) == (common_ms >= (1.0 if workers else 2.6))
    if share == 1:
        assert VerdictKind.SLOW_RANK not in named
    else:
        slow = named[VerdictKind.SLOW_RANK]
        assert (slow.rank, slow.cause) == (rank, Cause.INPUT)
    total = sum(cause.saved_after_others_ratio.value for kind, cause in named.items() if kind in LOADERS)
    assert total <= wait_ms / (100 + wait_ms) + 0.01


LOADERS = (VerdictKind.SLOW_LOADER, VerdictKind.SLOW_RANK)


def test_a_rank_whose_loader_alone_is_slow_is_named_with_what_its_workers_need() -> None:
    waits_ns = np.array([[0.0], [20 * MS], [0.0], [0.0]])
    own = np.array([[80 * MS], [240 * MS], [80 * MS], [80 * MS]])
    report = analyze(make_job(waits_ns, WORKERS | {"worker_host_ns": own, "worker_collate_host_ns": 0}))
    verdict, loader = report.verdict, read_loader(report)
    assert (verdict.kind, verdict.rank, verdict.cause) == (VerdictKind.SLOW_RANK, 1, Cause.INPUT)
    assert (loader.batch_ns, loader.others_batch_ns) == (240 * MS, 80 * MS)
    assert "its 2 workers need 240.0 ms for a batch, the others 80.0 ms" in describe_verdict(report)


@pytest.mark.parametrize("known", [True, False])
def test_the_slowest_of_loaders_that_are_all_too_slow_is_no_straggler(known: bool) -> None:
    """Rank 2 has all of the waiting, because its workers are slower by 1 %; where that is not known, it is named."""
    waits_ns = np.array([[0.0], [0.0], [20 * MS], [0.0]])
    own = np.array([[240.0], [240.0], [242.0], [240.0]]) * MS
    columns = WORKERS | ({"worker_host_ns": own} if known else {"worker_batches": 0, "worker_host_ns": 0})
    report = analyze(make_job(waits_ns, columns))
    verdict = report.verdict
    assert (verdict.kind, verdict.rank) == ((VerdictKind.SLOW_LOADER, None) if known else (VerdictKind.SLOW_RANK, 2))
    assert verdict.lost_ratio is not None
    assert verdict.lost_ratio.value == pytest.approx(20 / 120, abs=0.02)


@pytest.mark.parametrize(
    ("columns", "limit", "advice"),
    [
        ({"worker_host_ns": 100 * MS, "loader_ready": 3}, LoaderLimit.ORDER, "prefetch_factor, now 2"),
        ({"loader_unpinned": 1}, LoaderLimit.PINNING, "pinned memory"),
        ({"worker_host_ns": 100 * MS}, None, "more workers (num_workers, now 2)"),
        ({"worker_batches": 0, "worker_host_ns": 0}, None, "more workers (num_workers, now 2)"),
    ],
    ids=["order", "pinning", "neither", "unknown"],
)  # fmt: skip
def test_workers_that_keep_up_are_not_too_few(columns: dict[str, Any], limit: LoaderLimit | None, advice: str) -> None:
    report = analyze(make_job(20 * MS, WORKERS | columns))
    loader = read_loader(report)
    assert (loader.limit, loader.workers_needed) == (limit, None)
    assert advice in describe_next(report) and describe_verdict(report)


@pytest.mark.parametrize(
    ("cpu_ms", "cores", "limit", "needed"),
    [
        (240, None, LoaderLimit.WORKERS, None), (100, None, LoaderLimit.WORKERS, 3),
        (240, 16, LoaderLimit.WORKERS, 3), (240, 12, LoaderLimit.CORES, None),
    ],
)  # fmt: skip
def test_workers_that_compute_need_cores(
    cpu_ms: int, cores: int | None, limit: LoaderLimit, needed: int | None
) -> None:
    """Four ranks of 240 ms of computing in 100 ms need 9.6 cores, and training, 61 ms of 120, another 2.4 or so."""
    run = make_job(20 * MS, WORKERS | {"worker_cpu_ns": cpu_ms * MS})
    if cores is not None:
        readings = [make_readings(run, rank, USUAL, LEVELS | {"cores": cores}) for rank in range(4)]
        run = structs.replace(run, scheduling=tuple(readings))
    report = analyze(run)
    loader = read_loader(report)
    assert (loader.limit, loader.workers_needed) == (limit, needed)
    assert ("no room for more workers" in describe_verdict(report)) == (limit is LoaderLimit.CORES)
