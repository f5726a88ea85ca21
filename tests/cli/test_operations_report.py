"""``distprof report`` of a table of operations: what is shown, written and refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, EXIT_PARTIAL, EXIT_USAGE
from distprof.report.operations_report import OPERATIONS_SCHEMA

pytest.importorskip("pyarrow")
DATA = Path(__file__).resolve().parents[1] / "data" / "pipeline_8steps.parquet"
SHARED = DATA.parents[2].parent / "shared" / "data" / "pipeline"


def show(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run_verb(["report", *map(str, arguments), "--width", "80"])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_uneven_stage_of_a_real_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = show(capsys, DATA, "--out", tmp_path)
    assert code == EXIT_OK
    assert " ".join(out.split()).startswith("stage 3 has 6") and "on both replicas" in " ".join(out.split())
    assert " is slow" not in out
    assert len(out.splitlines()) <= 24 and all(len(line) <= 80 for line in out.splitlines())
    plain = json.loads((tmp_path / "report.json").read_text())
    assert plain["schema"] == OPERATIONS_SCHEMA
    assert (plain["num_replicas"], plain["num_stages"], plain["num_steps"]) == (2, 4, 8)
    events = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))["traceEvents"]
    passes = [event for event in events if event["ph"] == "X" and event["name"] == "forward-compute 3"]
    assert len(passes) == 8 * 2 * 4 and {event["pid"] for event in passes} == {0, 1}
    begins = {step: min(event["ts"] for event in passes if event["args"]["step"] == step) for step in (259, 261)}
    assert 2.0e6 < begins[261] - begins[259] < 2.4e6, "steps stand one behind the other"
    page = (tmp_path / "report.html").read_text()
    card = page.partition('<section class="card"')[2].partition("</section>")[0].replace("&nbsp;", " ")
    for text in (
        "Uneven stage: stage 3",
        "293.5 ms per step, 13 % of it",
        "Stage 3 has",
        "Move layers from that stage",
    ):
        assert text in card


def test_details_show_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = show(capsys, DATA, "--no-write", "--details")
    assert code == EXIT_OK
    for text in ("slowdowns", "embedding-grads-all-reduce", "what if", "dp 1, stage 3"):
        assert text in out


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published jobs are not here")
def test_the_slow_worker_of_a_real_job(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = show(capsys, SHARED / "trace-AR.parquet", "--no-write")
    told = " ".join(out.split())
    assert code == EXIT_OK
    assert told.startswith("dp 0, stage 0 (rank 0) is slow: its computation takes 2.4 times as long")
    assert "steps would be 50 % shorter" in told


def test_a_wrong_cell_is_one_line_and_exit_code_3(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("dp,pp,step,kind,start_s,duration_s\n0,0,0,forward-compute,0,-1\n")
    code, out, err = show(capsys, path, "--no-write")
    assert (code, out) == (EXIT_PARTIAL, "")
    assert err.count("\n") == 1 and f"{path}: column duration_s, row 1: -1 is less than 0" in err


def test_steps_without_partners_are_one_line_and_exit_code_3(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    rows = [f"0,{stage},0,{kind}-compute,{at},1" for stage in (0, 1) for at, kind in enumerate(("forward", "backward"))]
    path.write_text("\n".join(["dp,pp,step,kind,start_s,duration_s", *rows]))
    code, _, err = show(capsys, path, "--no-write")
    assert code == EXIT_PARTIAL
    assert (
        err.count("\n") == 1 and "no step can be replayed: step 0: dp 0, stage 0: some forward-send is missing" in err
    )


def test_one_stage_of_one_replica_without_communication(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    rows = [f"0,0,{step},{kind}-compute,{at},1" for step in range(9) for at, kind in enumerate(("forward", "backward"))]
    path.write_text("\n".join(["dp,pp,step,kind,start_s,duration_s", *rows]))
    code, out, _ = show(capsys, path, "--no-write")
    assert code == EXIT_OK
    assert "no worker, stage, link or micro-batch stands out" in out


def test_a_table_is_read_alone(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = show(capsys, DATA, DATA, "--no-write")
    assert code == EXIT_USAGE and "pass it alone" in err


def test_report_json_has_the_schema_that_is_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    with pytest.raises(SystemExit):
        run_verb(["report", "--operations-schema"])
    schema = json.loads(capsys.readouterr().out)
    assert schema["properties"]["schema"]["const"] == OPERATIONS_SCHEMA
    show(capsys, DATA, "--out", tmp_path)
    jsonschema.Draft202012Validator(schema).validate(json.loads((tmp_path / "report.json").read_text()))
