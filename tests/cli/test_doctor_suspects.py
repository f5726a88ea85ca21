"""`distprof doctor --suspects` as ranks run it: what it shows and writes, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.cli.parser import run_verb
from distprof.storage.run_folder import read_run, write_meta
from tests.factories import make_meta
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports, tell_rank

DIES = """
import os
from distprof.record.hosts import suspect_probe
do, turns = suspect_probe._Worker.do, []
def die(self, *order):
    turns.append(order)
    return do(self, *order) if len(turns) < 4 else os._exit(9)
suspect_probe._Worker.do = die
"""


def test_one_table_and_one_sentence_and_a_file(tmp_path: Path) -> None:
    (port,) = find_ports(1)
    arguments = ["doctor", "--suspects", "1", "--seconds", "1", "--json", "probes.json", "--width", "150"]
    ranks = run(*(make_rank(rank, 3, port, arguments) for rank in range(3)), cwd=tmp_path)
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    assert ranks[1].out == ranks[2].out == ranks[1].err == ranks[2].err == ""
    shown, document = ranks[0].out, json.loads((tmp_path / "probes.json").read_text())
    assert "probes of rank 1 against ranks 0, 2" in shown and "1 (suspect)" in shown
    for head in ("host", "device", "product", "copy", "exchange with rank 0", "exchange with rank 2", "GFLOP/s ±"):
        assert head in shown
    assert " ".join(shown.split()).endswith(document["sentence"])
    assert document["schema"] == "distprof.probes/1.0" and document["report"]["references"] == [0, 2]
    # On a machine that others use, a difference or too few rounds may be what is true: the sentence says one of these.
    beginnings = ("Nothing differs beyond the spread", "Too few rounds", "It is the ")
    assert document["sentence"].startswith(beginnings)


def test_it_joins_the_report_of_a_run_of_as_many_ranks(tmp_path: Path) -> None:
    write_meta(tmp_path, make_meta(world_size=3))
    (tmp_path / "ranks").mkdir()
    (port,) = find_ports(1)
    arguments = [
        "doctor",
        "--suspects",
        "0",
        "--references",
        "1,2",
        "--seconds",
        "1",
        "--into",
        str(tmp_path),
        "--json",
    ]
    ranks = run(*(make_rank(rank, 3, port, arguments) for rank in range(3)), cwd=tmp_path)
    assert [rank.code for rank in ranks] == [0, 0, 0], ranks
    recorded = read_run(tmp_path)
    assert recorded.probes is not None and recorded.probes.references == (1, 2) and recorded.warnings == ()
    assert json.loads(ranks[0].out) == json.loads((tmp_path / "probes.json").read_text())


def test_a_run_of_more_ranks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_meta(tmp_path, make_meta(world_size=4))
    for name, value in tell_rank(0, 3, 9999).items():
        monkeypatch.setenv(name, value)
    assert run_verb(["doctor", "--suspects", "1", "--into", str(tmp_path)]) == 2
    assert "is a run of 4 ranks, and the probes have 3" in capsys.readouterr().err


def test_a_rank_that_dies_ends_the_others_with_a_line(tmp_path: Path) -> None:
    (port,) = find_ports(1)
    arguments = ["doctor", "--suspects", "1", "--seconds", "1", "--json", "probes.json"]
    ranks = run(*(make_rank(rank, 3, port, arguments, before=DIES * (rank == 2)) for rank in range(3)), cwd=tmp_path)
    assert [rank.code for rank in ranks] == [1, 1, 9]
    assert ranks[0].err.strip().splitlines()[-1].startswith("distprof: rank 2 has ended, or did not answer for 30 s")
    assert ranks[1].err.strip().splitlines()[-1].startswith("distprof: rank 0 has ")
    assert max(len(rank.err.strip().splitlines()) for rank in ranks[:2]) <= 2
    assert max(rank.seconds for rank in ranks) < 60 and not (tmp_path / "probes.json").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--suspects", "one"], "must be ranks, separated by commas"),
        (["--suspects", "1,1"], "names a rank twice"),
        (["--suspects", "4"], "rank 4 does not exist: there are 4 ranks"),
        (["--suspects", "0,1,2"], "leaves 1 of 4 ranks"),
        (["--suspects", "1", "--references", "0"], "two ranks that are no suspects"),
        (["--suspects", "1", "--references", "0,1"], "two ranks that are no suspects"),
        (["--suspects", "1", "--seconds", "0"], "1 to 60"),
        (["--suspects", "1", "--json", "absent/probes.json"], "no such folder"),
    ],
)
def test_what_cannot_be_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tell_rank(0, 4, 9999).items():
        monkeypatch.setenv(name, value)
    assert run_verb(["doctor", *options]) == 2
    assert said in capsys.readouterr().err


def test_it_needs_a_launcher(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert run_verb(["doctor", "--suspects", "1"]) == 2
    assert "start it with torchrun" in capsys.readouterr().err
