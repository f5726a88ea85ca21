"""Jobs of four ranks that do not all do the same: their output is the same, and every rank is told who it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distprof.analyze import analyze
from distprof.facts.mesh import Mesh, RankPlace
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
}  # fmt: skip
NAMES = [pytest.param(name, marks=[pytest.mark.sharding] * (name in SHARDED)) for name in JOBS]
pytestmark = pytest.mark.slow


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
            "overrides": [f"run_dir={folder / name}", "profile.shadow_every=0", "warmup_steps=1"],
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
