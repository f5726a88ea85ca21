"""``distprof report --picture`` and ``--pftrace``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK, EXIT_USAGE
from distprof.render.files import trace_protobuf
from tests.kineto_file import make_kernel, make_launch, write_kineto

DATA = Path(__file__).resolve().parents[1] / "data" / "pipeline_8steps.parquet"
SVG = "{http://www.w3.org/2000/svg}"


def test_a_picture_of_a_table_of_operations(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "step.svg"
    assert run_verb(["report", str(DATA), "--no-write", "--picture", str(path)]) == EXIT_OK
    svg = ElementTree.parse(path).getroot()
    assert svg.tag == f"{SVG}svg" and len(svg.findall(f"{SVG}style")) == 1 and path.stat().st_size < 60_000
    assert sum(text.attrib.get("class", "").startswith("num") for text in svg.iter(f"{SVG}text")) == 8 * 4 * 2
    assert "url(http" not in path.read_text() and "@import" not in path.read_text()


def refuse(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run_verb(["report", *map(str, arguments)]) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_cannot_be_drawn_or_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_kineto(tmp_path / "trace.json", [make_launch(0, 1, 1), make_kernel("gemm", 2, 5, 1)])
    line = refuse(capsys, trace, "--no-write", "--picture", tmp_path / "x.svg")
    assert line.endswith("x.svg: no measured step was kept that could be drawn: leave it out")
    pytest.importorskip("pyarrow")
    line = refuse(capsys, DATA, "--no-write", "--picture", tmp_path / "no" / "step.svg")
    assert line.endswith("step.svg: cannot be written (No such file or directory): choose another file")


def test_without_the_package_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        trace_protobuf.importlib.util, "find_spec", lambda name: None if name == "perfetto" else find(name)
    )
    line = refuse(capsys, DATA, "--out", tmp_path, "--pftrace")
    assert line == "distprof: --pftrace needs the perfetto package: pip install 'distprof[perfetto]'"
    assert not [*tmp_path.iterdir()]
