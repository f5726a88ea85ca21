"""Jobs of four ranks that do not all do the same: their output is the same, and every rank is told who it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from distprof.analyze import analyze
from distprof.facts.mesh import Mesh, RankPlace
from distprof.facts.micro_batches import OPERATION_CODE, OPERATION_KINDS, OperationKind
from distprof.report.report import Report
from distprof.storage.run_folder import read_meta
from distprof.traces.load_run import load_run
from tests.conftest import find_missing_sharding
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports

SHARDED = ("tensor_parallel", "hybrid_shard")
JOBS = {
    "tensor_parallel": ("tensor_parallel", []), "hybrid_shard": ("hybrid_shard", []),
    "evaluator": ("evaluator", []), "parameter_server": ("parameter_server", []),
    "1f1b": ("pipeline", ["Schedule1F1B"]), "gpipe": ("pipeline", ["ScheduleGPipe"]),
    "interleaved": ("pipeline", ["ScheduleInterleaved1F1B"]), "pipeline_replicas": ("pipeline_replicas", []),
    "pipeline_by_hand": ("pipeline_by_hand", []), "experts": ("experts", []),
    "sequence_parallel": ("sequence_parallel", []),
}  # fmt: skip
PIPELINES = ("1f1b", "gpipe", "interleaved", "pipeline_by_hand", "pipeline_replicas")
"""Every fourth of their steps is a shadow step; what a stage receives after it may come before its next step begins."""
NAMES = [pytest.param(name, marks=[pytest.mark.sharding] * (name in SHARDED)) for name in JOBS]
PASSES, BATCHES = (OperationKind.FORWARD, OperationKind.BACKWARD), 4
pytestmark = [pytest.mark.slow, pytest.mark.first]


class Ended(NamedTuple):
    """What the ranks have written, and where."""

    folder: Path
    ranks: list[dict[str, Any]]

    def report(self, name: str) -> Report:
        """The conclusions about a job."""
        return analyze(load_run(self.folder / name))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("parallel")
    ports = iter(find_ports(2 * len(JOBS) + 1))
    plan = {
        name: {
            "program": program, "arguments": arguments, "environment": {}, "broken": [], "alone": False,
            "ports": [next(ports), next(ports)],
            "overrides": [
                f"run_dir={folder / name}", "warmup_steps=1", f"profile.shadow_every={4 * (name in PIPELINES)}"
            ],
        }
        for name, (program, arguments) in JOBS.items() if name not in SHARDED or find_missing_sharding() is None
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    before, port = "from tests.attach.driver import main; raise SystemExit(main())", next(ports)
    done = run(*(make_rank(rank, 4, port, ["plan.json"], before=before) for rank in range(4)), cwd=folder)
    assert [each.code for each in done] == [0] * 4, [each.err for each in done]
    return Ended(folder, [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(4)])


@pytest.mark.parametrize("name", NAMES)
def test_the_losses_are_the_same_to_the_bit(ended: Ended, name: str) -> None:
    for rank in ended.ranks:
        assert rank[name]["plain"]["out"] and rank[name]["watched"] == rank[name]["plain"]
        assert rank[name]["put_back"]


@pytest.mark.sharding
@pytest.mark.parametrize(
    ("name", "axes"), [("tensor_parallel", ("dp", "tp")), ("hybrid_shard", ("replicate", "shard"))]
)
def test_groups_and_ranks_are_named_after_the_mesh(ended: Ended, name: str, axes: tuple[str, str]) -> None:
    places = ((0, 0), (0, 1), (1, 0), (1, 1))
    expected = Mesh(axes=axes, places=tuple(RankPlace(rank=rank, at=at) for rank, at in enumerate(places)))
    assert read_meta(ended.folder / name).mesh == expected
    report = ended.report(name)
    assert report.mesh is not None and (report.mesh.axes, report.mesh.coordinates) == (axes, places)
    outer, inner = axes
    assert {item.group for item in report.waits} == {
        f"{outer} (ranks 0, 2)", f"{outer} (ranks 1, 3)", f"{inner} (ranks 0-1)", f"{inner} (ranks 2-3)",
    }  # fmt: skip
    assert report.coverage.complete and report.coverage.steps_measured == 11


@pytest.mark.parametrize(
    ("name", "apart", "measured"),
    [
        ("evaluator", {3: "no training step; forwards without gradients in 2 steps of its own"}, 15),
        ("parameter_server", {0: "12 steps of its own, with an optimizer and no backward"}, 10),
    ],
)
def test_every_rank_has_its_row_and_none_shrinks_the_others_steps(
    ended: Ended, name: str, apart: dict[int, str], measured: int
) -> None:
    report = ended.report(name)
    assert {rank.rank: rank.apart for rank in report.ranks if rank.apart is not None} == apart
    assert (report.coverage.steps_measured, report.coverage.ranks_missing) == (measured, ())
    assert report.mesh is None


@pytest.mark.parametrize(
    ("name", "stages", "chunks", "replicas"),
    [
        ("1f1b", 4, 1, 1), ("gpipe", 4, 1, 1), ("interleaved", 4, 2, 1), ("pipeline_by_hand", 4, 1, 1),
        ("pipeline_replicas", 2, 1, 2),
    ],
)  # fmt: skip
def test_every_micro_batch_of_a_pipeline_is_counted(
    ended: Ended, name: str, stages: int, chunks: int, replicas: int
) -> None:
    run = load_run(ended.folder / name)
    at = [rank % stages for rank in range(4)]
    assert np.flatnonzero(run.column("shadow")[0] == 1).tolist() == [3, 4]
    for own, stage in zip(run.operations, at, strict=True):
        assert own is not None
        crossings = 2 * BATCHES * (2 * chunks - (stage == 0) - (stage == stages - 1))
        for step in (1, 2, 5, 6, 7):
            kinds = [OPERATION_KINDS[kind] for kind in own.kind[own.step == step].tolist()]
            assert [kinds.count(kind) for kind in PASSES] == [BATCHES * chunks] * 2
            assert kinds.count(OperationKind.SEND) + kinds.count(OperationKind.RECEIVE) == crossings
            passes = np.isin(own.kind, [OPERATION_CODE[kind] for kind in PASSES])
            batches = own.micro_batch[(own.step == step) & passes]
            assert np.bincount(batches).tolist() == [2 * chunks] * BATCHES
    found = ended.report(name).pipeline
    assert found is not None and found.notes == ()
    assert (found.num_stages, found.replicas, found.micro_batches) == (stages, replicas, BATCHES)


@pytest.mark.parametrize("name", ["experts", "sequence_parallel"])
def test_what_ranks_exchange_inside_their_passes_is_no_pipeline(ended: Ended, name: str) -> None:
    report = ended.report(name)
    assert report.pipeline is None and report.coverage.complete
    assert report.coverage.steps_measured == 7
    assert all(rank.apart is None for rank in report.ranks)
