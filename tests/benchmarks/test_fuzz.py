"""The fuzzer: runs a few cases, checks that equal seeds give equal inputs, and that failures are detected."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.fuzz import captures, trial
from benchmarks.fuzz.captures import make_capture_case
from benchmarks.fuzz.cases import KINDS, make_case, write_sound
from benchmarks.fuzz.trial import Plan, run_trial
from benchmarks.fuzz.values import Raw, Twin, dump, mutate
from benchmarks.fuzz.verdict import judge
from distprof.cli.parser import run_verb
from distprof.errors import EXIT_USAGE
from tests.ranks import REPOSITORY, run_alone

CASES = 35
"""Five of each kind; the fuzzer itself runs thousands before a release."""
PROGRAM = """
import sys, time
how = sys.argv[-1]
if how == "raises":
    raise ValueError("boom")
if how == "hangs":
    time.sleep(60)
if how == "eats":
    bytes(2 << 30)
if how == "two lines":
    print("distprof: a\\ndistprof: b", file=sys.stderr)
sys.exit({"two lines": 1, "strange": 9}.get(how, 0))
"""


def read_tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_slice_of_the_fuzzer_finds_nothing(tmp_path: Path) -> None:
    done = run_alone(
        ["fuzz", "--cases", str(CASES), "--seed", "5", "--limit", "60", "--jobs", "1"],
        tmp_path,
        module="benchmarks",
        PYTHONPATH=str(REPOSITORY),
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"{CASES} cases with seed 5 in ") and ", 0 failed" in last
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:-1]] == [*KINDS]
    assert list(tmp_path.iterdir()) == []


def test_a_change_for_which_sqlite_has_no_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statements = [
        "PRAGMA writable_schema=ON",
        "UPDATE sqlite_master SET sql = NULL WHERE name = 'NVTX_EVENTS'",
        "ALTER TABLE NVTX_EVENTS DROP COLUMN text",
        "DELETE FROM StringIds",
    ]
    monkeypatch.setattr(captures, "CHANGES", {lambda draws: statements: 1})
    told = make_capture_case(tmp_path / "a.sqlite", random.Random(0))
    assert told[:4] == [*statements[:3], "-- MemoryError()"]


def test_the_same_seed_makes_the_same_inputs_and_another_one_others(tmp_path: Path) -> None:
    trees = []
    for place, seed in enumerate((3, 3, 4)):
        tree: dict[str, object] = {}
        for number in range(12):
            folder = tmp_path / f"{place}-{number}"
            folder.mkdir()
            case = make_case(number, seed, KINDS, folder)
            tree[f"{number} asked"] = (case.arguments, case.told)
            tree |= {f"{number} {name}": content for name, content in read_tree(folder).items()}
        trees.append(tree)
    assert trees[0] == trees[1] and trees[0] != trees[2]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", "traceback: ValueError: boom"),
        ("hangs", "no end after 1 s"),
        ("eats", "traceback: MemoryError"),
        ("two lines", "not one line"),
        ("strange", "exit code 9"),
        ("well", ""),
    ],
)
def test_what_no_command_may_do_is_seen_and_its_input_kept(
    how: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    made = make_case(0, 0, KINDS, tmp_path)
    case = type(made)(kind="streams", arguments=(how,), told=("nothing",))
    monkeypatch.setattr(trial, "make_case", lambda *_: case)
    monkeypatch.setattr(trial, "PROGRAM", "program")
    keep = tmp_path / "keep"
    outcome = run_trial(Plan(seed=0, kinds=KINDS, limit_s=1.0 if how == "hangs" else 60.0, keep=keep), 7)
    assert "".join(outcome.wrong)[: len(said)] == said and bool(outcome.wrong) == bool(said)
    if said:
        assert outcome.kept == str(keep / "streams-0-7")
        assert said in (keep / "streams-0-7" / "CASE.txt").read_text("utf-8")
    else:
        assert outcome.kept is None and not keep.exists()


def make_report(folder: Path, **changes: object) -> Path:
    """The report of a sound run, with some top-level values replaced."""
    paths = write_sound(folder)
    assert run_verb(["report", str(folder / paths[0]), "--out", str(folder / "out")]) in (0, 3)
    path = folder / "out" / "report.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    return folder / "out"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"config": {"x": float("nan")}}, "NaN is not JSON"),
        ({"headline": {"mfu_ratio": 1.01, "busiest": None}}, "headline.mfu_ratio is 1.01: not a share"),
        ({"steps": [{"clock": "host", "mean_ns": [1, -1]}]}, "steps.mean_ns is -1: below 0"),
        ({"phases": [{"clock": "host", "share_ratio": 0.6}] * 2}, "phases on the host clock are 120 % of the step"),
    ],
)
def test_what_no_report_may_say_is_seen(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    out = make_report(tmp_path, **changes)
    assert said in "".join(judge(0, "", "", out)) and bool(judge(0, "", "", out)) == bool(said)
    assert judge(0, "176500826797.5 %", "", tmp_path) == ["shows 176500826797.5 %"]
    assert judge(0, "\x1b[31m", "", tmp_path) == ["stdout has the control character '\\x1b'"]
    (out / "trace.json.gz").write_bytes(gzip.compress(b"{"))
    assert "files of the report" in judge(0, "", "", out)[0]


def test_json_is_written_as_careless_programs_do() -> None:
    assert dump({"a": [1, Raw("[[")], Twin("a"): float("nan")}) == '{"a":[1,[[],"a":NaN}'
    assert dump([Twin("a")]) == json.dumps(["a"])
    tree: dict[str, object] = {"a": {"b": [1, 2]}, "c": 3}
    assert mutate(tree, random.Random(2)) and tree != {"a": {"b": [1, 2]}, "c": 3}


def test_numbers_below_one_are_slips(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fuzz", "--cases", "0"]) == EXIT_USAGE
    assert "must be 1 or more" in capsys.readouterr().err
