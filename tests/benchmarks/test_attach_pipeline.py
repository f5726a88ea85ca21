"""What attach takes of a pipeline, as its benchmark judges it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import attach_pipeline
from benchmarks.attach_cost import ATTACHED, PLAIN
from benchmarks.attach_pipeline import PROCESSORS, RANKS, TRAINING, WHOLE, describe_run, show
from distprof.report.report import SCHEMA


def make_taken(more_s: float) -> dict[str, dict[str, list[float]]]:
    return {
        what: {PLAIN: [100.0, 200.0, 100.0], ATTACHED: [100.0 + more_s, 200.0 + 2 * more_s, 100.1 + more_s]}
        for what in (WHOLE, TRAINING, PROCESSORS)
    }


@pytest.mark.parametrize(("more_s", "fine"), [(2.0, True), (2.95, False), (4.0, False)])
def test_the_upper_end_of_the_interval_is_judged(more_s: float, fine: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(make_taken(more_s), 600) is fine
    assert "outside the training loop: 0.00 s" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recorded", "rank", "right"), [([5, 5, 5, 5], None, True), ([5, 5, 4, 5], None, False), ([5, 5, 5, 5], 2, False)]
)
def test_a_run_is_wrong_where_a_rank_lacks_a_step_or_is_named(
    recorded: list[int], rank: int | None, right: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = np.full((RANKS, 5), np.nan)
    for row, number in enumerate(recorded):
        steps[row, :number] = range(number)
    run = SimpleNamespace(ranks=recorded, column={"step": steps}.__getitem__)
    monkeypatch.setattr(attach_pipeline, "read_run", lambda folder: run)
    verdict = {
        "schema": SCHEMA,
        "verdict": {"kind": "none" if rank is None else "straggler", "rank": rank, "reason": "told"},
    }
    (tmp_path / "report.json").write_text(json.dumps(verdict))
    told = describe_run(tmp_path, 5)
    assert f"steps {recorded}" in told and "told" in told and told.startswith("wrong") is not right
