"""`distprof compare`: its sides, its files, its exit codes, and the action that runs it in a workflow."""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from benchmarks.simulate import SimulatedJob, simulate
from benchmarks.simulate.job import USUAL_PHASE_NS
from distprof.cli import compare
from distprof.cli.parser import Parser, run_verb
from distprof.errors import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, EXIT_PARTIAL, EXIT_USAGE, EXIT_WORSE
from distprof.facts.run import Phase
from distprof.facts.sweep import Sweep, SweepJob
from distprof.report.comparison_report import ComparisonReport
from distprof.storage.run_folder import rank_path
from distprof.storage.sweep_folder import write_sweep
from tests.faults.run_folder import write_run
from tests.ranks import REPOSITORY

HOSTILE = "</script><script>alert(1)</script>|`a`[b](c)@team\x1b[31m\u202e"


def save_run(folder: Path, seed: int, *, forward: float = 1.0, steps: int = 40, **meta: Any) -> str:
    phase_ns = {**USUAL_PHASE_NS, Phase.FORWARD: forward * USUAL_PHASE_NS[Phase.FORWARD]}
    run = simulate(SimulatedJob(num_ranks=2, num_steps=steps, phase_ns=phase_ns), seed=seed, truth=False).run
    named = {"run_id": f"run-{seed}", **meta}
    return str(write_run(folder, structs.replace(run, meta=structs.replace(run.meta, **named))))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("runs")
    made = {f"base{seed}": save_run(folder / f"base{seed}", seed) for seed in (1, 2, 3)}
    made |= {f"slow{seed}": save_run(folder / f"slow{seed}", 10 + seed, forward=1.5) for seed in (1, 2, 3)}
    made["short"] = save_run(folder / "short", 20, steps=2)
    made["hostile"] = save_run(
        folder / "hostile", 21, name=HOSTILE, config={HOSTILE: HOSTILE}, versions={"torch": HOSTILE}
    )
    return made


def test_a_run_counts_once(runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, slow, other = runs["base1"], runs["slow1"], runs["slow2"]
    link = tmp_path / "link"
    link.symlink_to(slow)
    for arguments, why in (
        ([slow, str(link), "--against", base], f"{link}: is given twice: a run counts once"),
        ([slow, "--against", base, base], f"{base}: is given twice: a run counts once"),
        ([slow, other, "--against", base, slow], f"{slow}: is on both sides: a run is compared with others"),
    ):
        assert run_verb(["compare", *arguments]) == EXIT_USAGE
        assert why in capsys.readouterr().err
    assert run_verb(["compare", base, base, "--width", "80"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert shown.startswith("no difference") and "both sides are the same: nothing can differ" in shown


def test_a_longer_step_fails_over_a_limit_and_says_where_it_went(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [runs["base1"], runs["slow1"], "--width", "80"]
    assert run_verb(["compare", *sides, "--json", str(tmp_path / "a.json")]) == EXIT_OK
    shown = capsys.readouterr().out
    assert shown.startswith("worse: a step takes 1") and "one run per side" in shown and len(shown.splitlines()) <= 30
    assert not [line for line in shown.splitlines() if len(line) > 80]
    report = json.loads((tmp_path / "a.json").read_text())
    assert set(report) == set(ComparisonReport.__struct_fields__)
    means = [report["step"]["mean"][side] for side in ("base_ns", "new_ns")]
    assert sum(part["difference_ns"] for part in report["waterfall"]) == round(means[1]) - round(means[0])
    assert max(report["waterfall"], key=lambda part: part["difference_ns"])["name"] == "forward"
    assert run_verb(["compare", *sides, "--fail-over", "3%"]) == EXIT_WORSE
    assert run_verb(["compare", *sides, "--fail-over", "50 %"]) == EXIT_OK
    assert run_verb(["compare", *sides, "--fail-over", "14.7%", "--fail-on-inconclusive"]) == EXIT_INCONCLUSIVE
    assert run_verb(["compare", *reversed(sides[:2]), "--fail-over", "3%"]) == EXIT_OK
    assert "better: a step takes 1" in capsys.readouterr().out


def test_several_runs_of_a_side_tell_how_much_runs_vary(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    new, base = ([runs[f"{name}{seed}"] for seed in (1, 2, 3)] for name in ("slow", "base"))
    assert run_verb(["compare", *new, "--against", *base, "--fail-over", "3%", "--details"]) == EXIT_WORSE
    shown = capsys.readouterr().out
    assert "from run to run" in shown and "3 runs of 40 measured steps" in shown and "rank 1: forward" in shown


def test_a_baseline_stands_for_the_runs_that_it_was_saved_of(
    runs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_verb(["compare", runs["base1"], "--save-baseline", "main"]) == EXIT_OK
    assert capsys.readouterr().out == "saved distprof-baselines/main.json: 1 run\n"
    assert (tmp_path / "distprof-baselines/main.json").stat().st_size < 50_000
    reports = []
    for sides in ([runs["slow1"], "--baseline", "main"], [runs["base1"], runs["slow1"]]):
        assert run_verb(["compare", *sides, "--json", "a.json", "--fail-over", "3%"]) == EXIT_WORSE
        reports.append(json.loads(Path("a.json").read_text()))
    assert reports[0]["step"]["mean"]["ratio"] == pytest.approx(reports[1]["step"]["mean"]["ratio"], rel=1e-8)
    assert [part["difference_ns"] for part in reports[0]["waterfall"]] == pytest.approx(
        [part["difference_ns"] for part in reports[1]["waterfall"]], abs=2
    )
    again = ["compare", runs["slow1"], "--baseline", "main", "--save-baseline", "main", "--fail-over", "3%"]
    assert (run_verb(again), run_verb(again)) == (EXIT_WORSE, EXIT_OK)  # compared with what it was before
    assert run_verb(["compare", runs["slow1"], "--baseline", "other"]) == EXIT_FAILED
    assert "no such baseline: save one with --save-baseline other" in capsys.readouterr().err


def test_hostile_names_are_text_everywhere(
    runs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, summary = tmp_path / "a.html", tmp_path / "a.md"
    run_verb(["compare", runs["base1"], runs["hostile"], "--html", str(page), "--markdown", str(summary), "--details"])
    shown, html, markdown = capsys.readouterr().out, page.read_text(), summary.read_text()
    assert "alert(1)" in shown and "\x1b" not in shown and "\u202e" not in shown
    assert html.count("<script") == 1 and "&lt;script&gt;alert(1)" in html and "default-src 'none'" in html
    assert "<script" not in markdown and "@team" not in markdown and "&lt;script&gt;" in markdown
    tables = [line for line in markdown.splitlines() if line.startswith("| ") and "alert" in line]
    assert tables and {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {4}
    assert not re.search(r"(?<!\\)[`\[\]]", markdown)


def test_sweeps_are_compared_by_the_jobs_that_both_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, first, forward, seeds in (("a", 30, 1.0, (1, 2)), ("b", 40, 1.5, (1, 2, 3))):
        jobs = []
        for number in seeds:
            save_run(tmp_path / name / "jobs" / f"{number:03d}", first + number, forward=forward)
            jobs.append(SweepJob(number=number, overrides=(), settings={"seed": f"{number}"}, ranks=2,
                                 status="completed", folder=f"jobs/{number:03d}"))  # fmt: skip
        write_sweep(tmp_path / name, Sweep(name=name, started_utc="2026", distprof_version="0", jobs=tuple(jobs)))
    sweeps = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert run_verb(["compare", *sweeps, "--fail-over", "3%"]) == EXIT_WORSE
    shown = capsys.readouterr().out
    assert "job seed=1" in shown and "job seed=2" in shown and "seed=3" not in shown
    assert run_verb(["compare", *sweeps]) == EXIT_PARTIAL
    assert run_verb(["compare", sweeps[0], str(tmp_path / "a" / "jobs" / "001")]) == EXIT_USAGE


def test_a_run_without_a_rank_is_compared_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = (save_run(tmp_path / name, seed) for name, seed in (("whole", 1), ("part", 2)))
    rank_path(Path(part), 1).unlink()
    assert run_verb(["compare", whole, part]) == EXIT_PARTIAL
    assert "not all ranks, or jobs, of all runs are there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["base1"], EXIT_USAGE, "two paths are compared"),
        (["base1", "base2", "base3"], EXIT_USAGE, "two paths are compared"),
        (["base1", "base2", "--fail-over", "3"], EXIT_USAGE, "expected a percentage above 0"),
        (["base1", "base2", "--fail-over", "0%"], EXIT_USAGE, "expected a percentage above 0"),
        (["base1", "base2", "--fail-on-inconclusive"], EXIT_USAGE, "add --fail-over"),
        (["base1", "--against", "base2", "--baseline", "a"], EXIT_USAGE, "leave one out"),
        (["base1", "--baseline", "../a"], EXIT_USAGE, "not a name for a baseline"),
        (["base1", "--save-baseline", "a", "--fail-over", "3%"], EXIT_USAGE, "nothing to compare with"),
        (["base1", "base2", "--html", "/nowhere/a.html"], EXIT_USAGE, "--html /nowhere/a.html: no such folder"),
        (["base1", "nowhere"], EXIT_FAILED, "no such file or folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(
    runs: dict[str, str], capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert run_verb(["compare", *(runs.get(word, word) for word in words)]) == code
    error = capsys.readouterr().err
    assert said in error and error.startswith("distprof: ") and error.count("\n") == 1


def test_a_run_of_two_steps_has_no_verdict(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["compare", runs["short"], runs["slow1"], "--fail-over", "3%"]) == EXIT_OK
    assert capsys.readouterr().out.startswith("inconclusive: the mean step changed by ")


ACTION = REPOSITORY / "launch" / "compare" / "action.yml"
INPUTS = {
    "paths": "a b\nc", "against": "d e", "baseline": "main", "baselines": "folder", "fail-over": "3%",
    "fail-on-inconclusive": "true",
}  # fmt: skip


def read_action() -> Any:
    return yaml.safe_load(ACTION.read_text(encoding="utf-8"))


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="distprof compare")
    compare.add_options(parser)
    return parser


def run_action(tmp_path: Path, inputs: dict[str, str]) -> tuple[int, list[str], str]:
    """The exit code, the arguments that `distprof` got, and the summary. Only the comparing step is run."""
    step = read_action()["runs"]["steps"][-1]
    names = {name: re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", text) for name, text in step["env"].items()}
    environment = {name: inputs.get(found[1], "") for name, found in names.items() if found is not None}
    assert len(environment) == len(names) and "${{" not in step["run"]
    stub = tmp_path / "bin" / "distprof"
    stub.parent.mkdir()
    lines = (
        "#!/bin/bash", f'printf "%s\\n" "$@" > {tmp_path}/got', 'echo made > "$RUNNER_TEMP/distprof-compare.md"',
        "exit 4",
    )  # fmt: skip
    stub.write_text("\n".join(lines))
    stub.chmod(stub.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**environment, "PATH": f"{stub.parent}:{os.environ['PATH']}", "RUNNER_TEMP": str(tmp_path),
             "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")},
    )  # fmt: skip
    got = (tmp_path / "got").read_text().splitlines()
    return done.returncode, got, (tmp_path / "summary").read_text()


def test_the_action_passes_its_inputs_on_to_options_that_exist(tmp_path: Path) -> None:
    action, parser = read_action(), make_parser()
    known = {option.removeprefix("--") for entry in parser._actions for option in entry.option_strings}
    assert set(action["inputs"]) == set(INPUTS) and set(INPUTS) <= known | {"paths"}
    assert action["inputs"]["baselines"]["default"] == str(parser.get_default("baselines"))
    code, got, summary = run_action(tmp_path, INPUTS)
    options = parser.parse_args(got[1:])
    assert (code, got[0], summary) == (4, "compare", "made\n")
    assert [*map(str, options.paths)] == ["a", "b", "c"] and [*map(str, options.against)] == ["d", "e"]
    assert (options.baseline, str(options.baselines), options.fail_over) == ("main", "folder", 0.03)
    assert options.fail_on_inconclusive and options.markdown == tmp_path / "distprof-compare.md"


def test_the_action_leaves_out_what_is_not_given(tmp_path: Path) -> None:
    _, got, _ = run_action(tmp_path, {"paths": "$(touch x) -a", "baselines": "distprof-baselines"})
    options = make_parser().parse_args(got[1:])
    assert [*map(str, options.paths)] == ["$(touch", "x)", "-a"]
    assert (options.against, options.baseline, options.fail_over) == (None, None, None)
    assert not options.fail_on_inconclusive and not (tmp_path / "x").exists()
