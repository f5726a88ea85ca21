"""The programs of the documents run as written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from distprof.analyze import analyze
from distprof.facts.run import Clock
from distprof.traces.load_run import load_run
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports, make_environment

END = "\nimport atexit; atexit._run_exitfuncs()\nraise SystemExit(0)\n"
ROOT = Path(__file__).resolve().parents[2]


def read_programs(page: str, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_the_programs_of_the_documents_run_as_written(page: str, tmp_path: Path) -> None:
    programs = [text for text in read_programs(page) if "distprof.start" in text]
    assert programs and len(programs[0].splitlines()) <= 10
    loader = "loader = [1, 2, 3, 4, 5]\n"
    (port,) = find_ports(1)
    before = "\n".join([loader + programs[0], *programs[1:]]) + END
    ended = run(*(make_rank(rank, 2, port, [], before=before) for rank in range(2)), cwd=tmp_path)
    assert [done.code for done in ended] == [0, 0], ended
    assert "run folder: " in ended[0].err and [done.out for done in ended] == ["", ""]


def test_the_loop_of_the_document_has_the_flops_of_its_micro_steps(tmp_path: Path) -> None:
    """One per step, although its backward is found as well as counted: 1e6 FLOPs a step, whatever it takes."""
    (program,) = (text for text in read_programs("docs/api.md") if "profiler.add_work" in text and "nn.Linear" in text)
    opened = 'distprof.start("mine"'
    assert opened in program
    made = "from distprof.facts.run import Work\nwork = Work(parameters=1, model_flops_per_micro_step=1_000_000, "
    made += "hardware_flops_per_micro_step=1_000_000, analytic_flops_per_micro_step=None)\n"
    before = made + program.replace(opened, f"{opened}, work=work, peak=1e15, precision='fp32'")
    (port,) = find_ports(1)
    ended = run(*(make_rank(rank, 2, port, [], before=before + END) for rank in range(2)), cwd=tmp_path)
    assert [done.code for done in ended] == [0, 0], ended
    (folder,) = (tmp_path / "runs").iterdir()
    recorded = load_run(folder)
    assert (recorded.column("micro_steps") == 1).all() and recorded.column("step").shape == (2, 30)
    report = analyze(recorded)
    assert report.flops is not None and report.flops.model_flops_per_step == 1_000_000
    for rank in report.ranks:
        mean_s = recorded.step_ns(Clock.HOST)[rank.rank, recorded.measured().all(axis=0)].mean() / 1e9
        assert rank.achieved_flops_per_s == pytest.approx(1_000_000 / mean_s)


@pytest.mark.slow
def test_a_script_runs_under_the_command_of_the_readme_as_written(tmp_path: Path) -> None:
    (command,) = (text for text in read_programs("README.md", "bash") if "distprof.attach" in text)
    shutil.copy(ROOT / "tests" / "attach" / "programs" / "plain_ddp.py", tmp_path / "train.py")
    environment = make_environment(PET_STANDALONE="1")  # as --standalone: other tests run torchrun at the same time
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(
        shlex.split(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * 16 and "distprof: run folder: " in done.stderr
    (folder,) = tmp_path.glob("runs/*_train")
    assert (folder / "report.html").exists() and load_run(folder).column("step").shape == (2, 16)
