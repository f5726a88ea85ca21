"""Traces of different jobs are recognised by contradictions; what only looks odd proves nothing."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from distprof.analyze import analyze
from distprof.errors import DataError
from distprof.facts.trace import TraceHead
from distprof.traces.assemble import assemble_run, attach_traces
from distprof.traces.kineto.head import BY_NAME
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.one_job import BY_ORDER, Claim, read_claim, require_one_job
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import TracedRank, trace_rank
from tests.factories import make_run
from tests.traces.reduce.real_traces import find_shared
from tests.traces.reduce.synthetic_jobs import make_job
from tests.traces.test_assemble import rename

SECOND, MINUTE, HOUR = 10**9, 60 * 10**9, 3600 * 10**9
NOON = 1_700_000_000 * SECOND
"""2023-11-14 22:13:20."""


def claim(rank: int, *, at_ns: int | None = NOON, vendor: str | None = "NVIDIA", **head: Any) -> Claim:
    """One second of one of 4 ranks, with NCCL."""
    usual: dict[str, Any] = {
        "path": f"rank{rank}.json", "tool": "kineto", "pid": 1, "rank": rank, "rank_source": "distributedInfo",
        "world_size": 4, "host": None, "backend": "nccl",
    }  # fmt: skip
    extent_ns = None if at_ns is None else (at_ns, at_ns + SECOND)
    return Claim(head=TraceHead(**{**usual, **head}), extent_ns=extent_ns, vendor=vendor)


def unname(said: Claim) -> Claim:
    """A trace that names neither its rank nor their number."""
    return replace(said, head=replace(said.head, rank=None, world_size=None))


CONTRADICTIONS = {
    "world": (claim(1, world_size=8), "rank0.json is from a job of 4 ranks, rank1.json from a job of 8 ranks"),
    "backend": (claim(1, backend="gloo"), "rank0.json is from the nccl backend, rank1.json from the gloo backend"),
    "make": (claim(1, vendor="AMD"), "rank0.json is from NVIDIA devices, rank1.json from AMD devices"),
    "days": (
        claim(1, at_ns=NOON + 72 * HOUR),
        "rank0.json ends 2023-11-14 22:13:21, rank1.json begins 3 days later, 2023-11-17 22:13:20",
    ),
    "minutes": (
        claim(1, at_ns=NOON - 30 * MINUTE),
        "rank1.json ends 2023-11-14 21:43:21, rank0.json begins 30 minutes later, 2023-11-14 22:13:20",
    ),
    "six minutes": (
        claim(1, at_ns=NOON + 6 * MINUTE),
        "rank0.json ends 2023-11-14 22:13:21, rank1.json begins 6 minutes later, 2023-11-14 22:19:20",
    ),
    "no rank": (
        unname(claim(1, at_ns=NOON + 31 * SECOND)),
        (
            "rank0.json ends 2023-11-14 22:13:21, rank1.json begins 30 seconds later, 2023-11-14 22:13:51, and not "
            "both name their rank"
        ),
    ),
    "groups": (
        claim(1, group_ranks={"tp": (1, 3)}),
        "rank0.json lists a process group of ranks 0, 1, but rank1.json of rank 1 does not",
    ),
}


@pytest.mark.parametrize(("other", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_is_said_with_both_files_and_what_to_do(other: Claim, reason: str) -> None:
    first = claim(0, group_ranks={"dp": (0, 1)})
    with pytest.raises(DataError) as refused:
        require_one_job([first, other])
    assert str(refused.value) == f"{reason}: different jobs: pass traces of one job"


SOUND = {
    "alike": [claim(rank) for rank in range(4)],
    "clocks most of a minute apart": [claim(0), claim(1, at_ns=NOON + 50 * SECOND)],
    "a chain of overlaps": [claim(rank, at_ns=NOON + rank * 50 * SECOND) for rank in range(4)],
    "at one time": [unname(claim(rank, at_ns=NOON + rank * SECOND // 2)) for rank in range(3)],
    "another clock": [claim(0), claim(1, at_ns=None)],
    "nothing said": [claim(0), claim(1, at_ns=None, vendor=None, world_size=None, backend=None)],
    "counted ranks": [claim(0), claim(1, world_size=2, rank_source=BY_ORDER, backend=None)],
    "one group, two names": [claim(0, group_ranks={"1": (0, 1)}), claim(1, group_ranks={"7": (1, 0)})],
    "one name, two groups": [claim(0, group_ranks={"1": (0, 1)}), claim(2, group_ranks={"1": (2, 3)})],
    "groups listed by one only": [claim(0, group_ranks={"1": (0, 1)}), claim(1)],
    "mixed nodes": [claim(0, device_name="NVIDIA A100-SXM4-80GB"), claim(1, device_name="NVIDIA H100 80GB HBM3")],
}


@pytest.mark.parametrize("claims", SOUND.values(), ids=SOUND)
def test_what_can_be_true_of_one_job_is_no_reason(claims: list[Claim]) -> None:
    require_one_job(claims)
    require_one_job(claims[::-1])


def test_traces_of_a_rank_from_several_times_are_a_jobs_only_where_that_is_meant() -> None:
    windows = [claim(0), claim(0, at_ns=NOON + 5 * HOUR), claim(1, at_ns=NOON + 5 * HOUR)]
    require_one_job(windows, at_several_times=True)
    with pytest.raises(DataError, match="5 hours later"):
        require_one_job(windows)
    with pytest.raises(DataError, match="5 hours later"):
        require_one_job([windows[0], windows[2]], at_several_times=True)


def make_traced(num_ranks: int, **head: Any) -> list[TracedRank]:
    traced = [trace_rank(trace, NameMap()) for trace in make_job(num_ranks=num_ranks, num_steps=2)]
    return [rename(item, **head) for item in traced] if head else traced


def test_a_number_in_a_files_name_makes_no_job_of_ten() -> None:
    (only,) = make_traced(1, rank=9, rank_source=BY_NAME, world_size=None, path="rank9_x.json")
    report = analyze(assemble_run([only]))
    assert (report.world_size, report.coverage.ranks_present, report.coverage.ranks_missing) == (1, (9,), ())
    assert report.coverage.complete
    assert "no file says how many ranks the job had: the rank found is assumed to be all of them" in (
        report.coverage.notes
    )


def test_numbers_in_names_with_a_gap_are_kept_and_nobody_is_missing() -> None:
    said = make_traced(3, rank_source=BY_NAME, world_size=None)
    traced = [rename(item, rank=rank) for item, rank in zip(said, (0, 1, 3), strict=True)]
    report = analyze(assemble_run(traced))
    assert (report.world_size, report.coverage.ranks_present, report.coverage.ranks_missing) == (3, (0, 1, 3), ())
    assert report.coverage.complete and all(item.members_missing == 0 for item in report.waits)
    wanted = "no file says how many ranks the job had: the 3 ranks found are assumed to be all of them"
    assert wanted in report.coverage.notes


def test_a_name_beyond_the_world_that_another_file_tells_of_is_no_rank() -> None:
    first, second = make_traced(2)
    run = assemble_run([first, rename(second, rank=31, rank_source=BY_NAME, world_size=None, path="r31.json")])
    assert [info.rank for info in run.ranks] == [0, 1] and run.meta.world_size == 2


def test_a_rank_that_a_file_itself_tells_of_has_ranks_below_it() -> None:
    (only,) = make_traced(1, rank=3, world_size=None)
    report = analyze(assemble_run([only]))
    assert (report.world_size, report.coverage.ranks_missing) == (4, (0, 1, 2))


def test_traces_of_another_world_do_not_belong_to_a_run() -> None:
    run = make_run(num_ranks=4, num_steps=3)
    with pytest.raises(DataError, match=r"rank0\.json: from a job of 2 ranks, but the run has 4: different jobs"):
        attach_traces(run, make_traced(2))


def test_mixed_devices_are_said_by_rank() -> None:
    first, second, third = make_traced(3)
    run = assemble_run([first, rename(second, device_name="NVIDIA A100-SXM4-80GB"), third])
    wanted = "ranks ran on different devices: ranks 0, 2 on NVIDIA H100 80GB HBM3; rank 1 on NVIDIA A100-SXM4-80GB"
    assert wanted in run.warnings


def test_every_pair_of_contradicting_claims_is_refused_in_any_company() -> None:
    """A third trace that says nothing must not hide a contradiction."""
    silent = claim(3, at_ns=None, vendor=None, world_size=None, backend=None)
    odd = [claim(0), claim(1, world_size=8), claim(2, world_size=16)]
    for pair in combinations(odd, 2):
        with pytest.raises(DataError):
            require_one_job([silent, *pair])


def test_real_traces_of_different_jobs_are_refused_and_of_one_are_not() -> None:
    folder = find_shared("data", "kineto", "mi250_toy.json.gz").parent
    paths = [*folder.glob("*.gz"), *folder.glob("v100_dlrm_8ranks/*.json")]
    claims = {path: read_claim(read_kineto(path)) for path in sorted(paths)}
    jobs = {path: path.parent if path.suffix == ".json" else path.name.removesuffix("_rank1.json.gz")
            .removesuffix("_rank0.json.gz") for path in paths}  # fmt: skip
    assert len(claims) >= 19 and len(set(jobs.values())) >= 11
    for one, other in combinations(claims, 2):
        pair = [claims[one], claims[other]]
        if jobs[one] == jobs[other]:
            require_one_job(pair)
            continue
        with pytest.raises(DataError, match="different jobs"):
            require_one_job(pair)
