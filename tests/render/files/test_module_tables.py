"""Tables of modules as CSV and Parquet: every module, all digits, ranks side by side, and what was not measured."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from distprof.analyze import analyze
from distprof.render.files.column_files import can_write_parquet, write_csv_columns, write_parquet_columns
from distprof.render.files.files import write_files
from distprof.render.files.module_files import list_module_tables, list_profile_columns
from tests.factories import make_run
from tests.made_modules import NAMES, make_module_run, make_table
from tests.render.sections.test_module_sections import make_blocks


def read(content: bytes) -> dict[str, dict[str, str]]:
    return {row["module"]: row for row in csv.DictReader(io.StringIO(content.decode()))}


def test_a_run_with_modules_writes_their_table(tmp_path: Path) -> None:
    run = make_module_run((make_table(0), make_table(3, forward_ms={"head": 2})))
    written = write_files(tmp_path, run, analyze(run))
    kinds = ("csv", "parquet") if can_write_parquet() else ("csv",)
    assert written.names[3:] == tuple(f"modules.{kind}" for kind in kinds)
    rows = read((tmp_path / "modules.csv").read_bytes())
    assert tuple(rows) == NAMES
    head = rows["head"]
    assert (head["class"], head["parent"], head["calls"], head["parameters"]) == ("Linear", "", "1", "30")
    assert (head["held_median_parameters"], head["forward_flops"], head["recomputed_flops"]) == ("15.0", "6000", "0")
    times = [head[f"forward_host_{which}"] for which in ("median_ns", "min_ns", "min_rank", "max_ns", "max_rank")]
    assert times == ["4000000.0", "3000000.0", "0", "5000000.0", "3"]
    assert head["recomputed_host_median_ns"] == head["recomputed_host_max_rank"] == ""


def test_a_run_without_modules_writes_none(tmp_path: Path) -> None:
    run = make_run()
    assert write_files(tmp_path, run, analyze(run)).names == ("report.html", "report.json", "trace.json.gz")


def test_parquet_knows_numbers_in_which_nothing_was_measured(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run = make_module_run((make_table(0, counted_step=None),))
    (tmp_path / "modules.parquet").write_bytes(write_parquet_columns(list_module_tables(analyze(run))["modules"]))
    table: Any = parquet.read_table(tmp_path / "modules.parquet")
    assert table.num_rows == len(NAMES) and table["module"].to_pylist() == list(NAMES)
    kinds = {field.name: str(field.type) for field in table.schema}
    assert kinds["forward_flops"] == kinds["recomputed_host_max_rank"] == "double"


def test_a_profile_without_training_has_every_figure() -> None:
    report = make_blocks(1)
    rows = read(write_csv_columns(list_profile_columns(report)))
    for row in report.rows:
        cells = rows[row.name]
        assert cells["class"] == row.kind and cells["depth"] == str(row.depth)
        assert cells["total_backward_flops"] == str(row.total_flops.backward)
        assert cells["self_forward_flops"] == str(row.self_flops.forward)
        time_ns = row.total_time.forward_ns
        assert cells["total_forward_ns"] == ("" if time_ns is None else repr(time_ns))
