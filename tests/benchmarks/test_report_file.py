"""Reports are read as the current schema describes them, whichever version of distprof wrote them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_file import CAUSE_NAMES, read_report_file
from distprof.errors import DataError
from distprof.render.files.files import describe_plain
from distprof.report.report import SCHEMA
from distprof.report.wait_report import VerdictKind
from tests.made_causes import make_cause, make_report


def write(path: Path, **changes: Any) -> Path:
    report = make_report([make_cause(VerdictKind.SLOW_RANK, 12.0, alone=15.0, rank=3)])
    path.write_text(json.dumps({**describe_plain(report), **changes}))
    return path


def test_a_report_of_schema_1_reads_as_one_of_schema_2(tmp_path: Path) -> None:
    path = write(tmp_path / "report.json")
    now = read_report_file(path)
    old_names = {new: old for old, new in CAUSE_NAMES.items()}
    old = json.loads(path.read_text())
    old["schema"] = "distprof.report/1"
    old["causes"]["causes"] = [
        {old_names.get(name, name): value for name, value in cause.items()} for cause in old["causes"]["causes"]
    ]
    assert old["causes"]["causes"][0]["alone_ratio"]["value"] == 0.15
    path.write_text(json.dumps(old))
    assert read_report_file(path) == now
    assert now["causes"]["causes"][0]["saved_if_only_this_ratio"]["value"] == 0.12


def test_a_report_that_knows_no_stretches_has_none(tmp_path: Path) -> None:
    """As those before schema 2 gained them."""
    path = write(tmp_path / "report.json")
    now = read_report_file(path)
    old = json.loads(path.read_text())
    assert old["verdict"].pop("stretch_lost_ratio") is None
    for name in ("stretch_saved_if_only_this_ratio", "stretch_saved_after_others_ratio"):
        del old["causes"]["causes"][0][name]
    path.write_text(json.dumps(old))
    assert read_report_file(path) == now


def test_labels_were_signs_and_states_were_stands(tmp_path: Path) -> None:
    evidence = {"rank_ns": 2.0, "others_ns": 1.0, "agree_ratio": 1.0}
    figure = {"name": None, "ranks": [0], "numbers": {}}

    def make(label: str, states: str) -> dict[str, Any]:
        return {
            "verdict": {"stretch_lost_ratio": None, "evidence": [{label: "own time", **evidence}]},
            "activity": {"findings": [{"figures": [{label: "call", **figure}]}]}, "hang": {states: [{"ranks": [1]}]},
        }  # fmt: skip

    now = read_report_file(write(tmp_path / "now.json", **make("label", "states")))
    assert read_report_file(write(tmp_path / "old.json", **make("sign", "stands"))) == now
    assert now["verdict"]["evidence"][0]["label"] == "own time" and now["hang"]["states"] == [{"ranks": [1]}]


def test_a_damaged_list_of_causes_of_schema_1_is_left_as_it_is(tmp_path: Path) -> None:
    for causes in (None, 3, {"causes": None}, {"causes": [None]}):
        path = write(tmp_path / "report.json", schema="distprof.report/1", causes=causes)
        assert read_report_file(path)["causes"] == causes


@pytest.mark.parametrize("schema", ["distprof.report/3", "distprof.run/1.0", "somebody.else/1"])
def test_a_file_of_another_schema_is_refused(tmp_path: Path, schema: str) -> None:
    assert schema != SCHEMA
    with pytest.raises(DataError, match=r"report\.json"):
        read_report_file(write(tmp_path / "report.json", schema=schema))
