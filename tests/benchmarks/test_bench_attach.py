"""The list of programs of others, and how what came out of them is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks.attach.check import check_culprit, check_nobody, compare
from benchmarks.attach.job import ProgramOutcome
from benchmarks.attach.program import PROGRAMS as FOLDER
from benchmarks.attach.programs import PROGRAMS
from distprof.facts.run import PHASES, Stretch
from distprof.report.report import SCHEMA

RESULT = {"losses": "a", "state": "b", "random": ["c"], "num_losses": 60}


def make_outcome(folder: Path, **changes: Any) -> ProgramOutcome:
    plain = ProgramOutcome(
        codes=[0, 0], stdout=[b"1\n", b"2\n"], stderr=[b"", b""], results=[dict(RESULT), dict(RESULT)], run=folder,
        wall_s=1.0,
    )  # fmt: skip
    return structs.replace(plain, **changes)


def test_every_program_is_there_with_what_is_to_be_found() -> None:
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS) >= 20
    assert {program.command.split()[0] for program in PROGRAMS} == {path.name for path in FOLDER.glob("*.py")}
    known = {*map(str, PHASES), Stretch.EVALUATION, Stretch.CHECKPOINT}
    for program in PROGRAMS:
        assert program.steps >= 50 and {*program.phases.split()} <= known
        assert program.has_loader <= ("data" in program.phases.split())


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, set()),
        ({"stdout": [b"1\n", b"2"]}, {"stdout"}),
        ({"codes": [0, 1]}, {"exit"}),
        ({"results": [RESULT, RESULT | {"losses": "d"}]}, {"losses"}),
        ({"results": [RESULT | {"state": "d"}, RESULT]}, {"parameters"}),
        ({"results": [RESULT, RESULT | {"random": []}]}, {"random state"}),
        ({"results": [RESULT, {}]}, {"losses", "parameters", "random state"}),
    ],
)
def test_each_difference_has_its_column(tmp_path: Path, changes: dict[str, Any], wrong: set[str]) -> None:
    cells = compare(make_outcome(tmp_path), make_outcome(tmp_path, **changes), PROGRAMS[0])
    assert {name for name, cell in cells.items() if not cell.right} == wrong


def test_a_culprit_is_the_rank_with_its_phase_and_module(tmp_path: Path) -> None:
    verdict = {"kind": "slow_rank", "rank": 1, "phase": "forward", "module": {"name": "net.1"}, "critical": True,
               "lost_ratio": {"value": 0.25}}  # fmt: skip
    (tmp_path / "report.json").write_text(json.dumps({"schema": SCHEMA, "verdict": verdict}), encoding="utf-8")
    outcome = make_outcome(tmp_path)
    assert [check_culprit(outcome, "forward", module).right for module in (None, "net.1", "net")] == [True, True, False]
    assert not check_culprit(outcome, "data").right
    assert str(check_nobody([outcome])) == "NO critical rank 1 forward 25.0%"
    assert check_nobody([make_outcome(tmp_path / "gone")]).right
