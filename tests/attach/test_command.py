"""``python -m distprof.attach``: the script's arguments, path, output and end are its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distprof.attach import command
from distprof.attach.command import Request, attach, read_request, show_error
from distprof.errors import UsageError
from tests.attach.driver import PROGRAMS
from tests.faults.forked import Command, start
from tests.ranks import make_environment, run_alone, wait_until

TELLS = """\
import __main__, json, pathlib, sys
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, __package__, __spec__ and __spec__.name,
                  sys.modules["__main__"] is __main__, sorted((k, type(v).__name__) for k, v in vars().items())]))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _unchanged() -> Iterator[None]:
    kept = sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook
    yield
    sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = kept


@pytest.mark.parametrize(
    ("line", "options", "target", "is_module", "arguments"),
    [
        ("-- train.py --x 1", {}, "train.py", False, "--x 1"),
        ("train.py --x 1", {}, "train.py", False, "--x 1"),
        ("name=mine profile.level=off shadow_every=5 -- a/train.py lr=1", {"name": "mine", "level": "off",
         "shadow_every": 5}, "a/train.py", False, "lr=1"),
        ("profile.max_overhead_ratio=null train.py -- -m", {"max_overhead_ratio": None}, "train.py", False, "-- -m"),
        ("run_dir=r -m pack.train --x", {"run_dir": "r"}, "pack.train", True, "--x"),
        ("-- -m pack.train", {}, "pack.train", True, ""),
        ("-- k=v.py", {}, "k=v.py", False, ""),
    ],
)  # fmt: skip
def test_a_command_line_is_read(
    line: str, options: dict[str, object], target: str, is_module: bool, arguments: str
) -> None:
    expected = Request(options=options, target=target, is_module=is_module, arguments=tuple(arguments.split()))
    assert read_request(line.split()) == expected
    assert expected.name == ("k=v" if "=" in target else "train")


def test_what_cannot_begin_says_why_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("distprof.start", fail)
    import torch  # noqa: F401 the script has

    watch = command.Watch(Request(options={}, target="train.py", is_module=False, arguments=()))
    watch.end()
    assert capsys.readouterr().err == "distprof: nothing is recorded: RuntimeError: no such thing\n"


@pytest.mark.parametrize("line", ["", "--", "name=x", "-m", "--nproc 2", "-- --x"])
def test_a_command_line_without_a_script_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match="script"):
        read_request(line.split())


def test_help_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        attach(["--help"])
    assert "python -m distprof.attach" in capsys.readouterr().out


def test_a_script_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        attach(["gone.py"])
    assert re.fullmatch(
        r"distprof: can't open file '/.*gone.py': .* No such file or directory\n", capsys.readouterr().err
    )


def test_an_option_that_is_wrong_ends_before_training(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="2"):
        attach(["profile.level=fazes", str(script)])
    captured = capsys.readouterr()
    assert captured.out == "" and "fazes" in captured.err and captured.err.startswith("distprof: ")


@pytest.mark.slow
def test_script_module_and_failure_look_as_in_python_itself(tmp_path: Path) -> None:
    """Real processes: the same output, errors and exit codes, without and with distprof."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tells.py").write_text(TELLS, encoding="utf-8")
    (tmp_path / "fails.py").write_text("def f():\n    raise KeyError('x')\n\nf()\n", encoding="utf-8")
    for target, arguments in ((["sub/tells.py"], ["7"]), (["-m", "sub.tells"], ["0", "--y"]), (["fails.py"], [])):
        plain = run_python([*target, *arguments], tmp_path)
        watched = run_alone(["--", *target, *arguments], tmp_path, module="distprof.attach")
        said = [line for line in watched.stderr.splitlines() if not line.startswith("distprof: ")]
        assert (watched.returncode, watched.stdout, said) == (plain.returncode, plain.stdout, plain.stderr.splitlines())


def test_an_error_is_shown_at_once_and_not_again_and_a_hook_of_the_script_is_left_to_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[BaseException] = []
    for hook, shown in ((sys.__excepthook__, 1), (lambda kind, error, trace: seen.append(error), 0)):
        monkeypatch.setattr(sys, "excepthook", hook)
        error = ValueError("the script's own")
        show_error(error)
        assert capsys.readouterr().err.count("ValueError: the script's own") == shown and not seen
        other = KeyError("in the end")
        for late in (error, other):
            sys.excepthook(type(late), late, None)
        assert ("KeyError: 'in the end'" in capsys.readouterr().err) == bool(shown)
    assert [str(error) for error in seen] == ["the script's own", "'in the end'"]


def test_a_hook_that_fails_to_show_an_error_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's, which puts the rank before each line, where standard error is closed."""
    python = sys.__excepthook__

    def show_rank(*args: Any) -> None:
        assert python
        raise AttributeError("standard error is closed")

    show_rank.__module__ = "torch.distributed.distributed_c10d"
    monkeypatch.setattr(sys, "excepthook", show_rank)
    error = ValueError("the script's own")
    show_error(error)
    with pytest.raises(AttributeError, match="closed"):
        sys.excepthook(type(error), error, None)


def run_python(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=make_environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_torch_is_imported_by_the_script_and_watched_from_then_on(tmp_path: Path) -> None:
    """A real process, because others have imported torch long before."""
    script = tmp_path / "train.py"
    checks = "import random, sys\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    numbers = "random.seed(0)\nbefore = random.getstate()\nimport torch\n"  # importing rich draws one of them
    same = "assert random.getstate() == before and 'rich' not in sys.modules\n"
    script.write_text(checks + numbers + same + (PROGRAMS / "alone.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = run_alone(["run_dir=run", str(script), "fail"], tmp_path, module="distprof.attach")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 12), done.stderr
    said = done.stderr[done.stderr.index("Traceback") :]
    assert re.fullmatch(  # the script's error first, and once: a launcher may stop the process soon
        r'Traceback \(most recent call last\):\n  File ".*train.py", line \d+, in <module>\n    raise .*\n'
        r"RuntimeError: no more data\n"
        r"distprof: stopped early; rank 0 failed after step 1[12]: RuntimeError: no more data\n"
        r"distprof: (step time|the process waits for its data) .*\n"
        r"distprof: run folder: .*\n",
        said,
    )
    report = json.loads((tmp_path / "run" / "report.json").read_text(encoding="utf-8"))
    assert report["coverage"]["steps_measured"] + report["coverage"]["steps_warmup"] >= 10


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_process_as_without_distprof(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "train.py"
    source = (PROGRAMS / "alone.py").read_text(encoding="utf-8")
    script.write_text(source.replace("for x, y in data:", "while True:\n    x, y = next(iter(data))"), encoding="utf-8")
    before = "import sys; from distprof.attach.command import attach; attach(sys.argv[1:])"
    (job,) = start(Command(arguments=["run_dir=run", "train.py"], before=before), cwd=tmp_path)
    wait_until(lambda: job.read()[0].count("\n") > 5, [job])
    job.send_signal(number)
    job.communicate()
    assert job.returncode == -number
    assert list((tmp_path / "run" / "ranks").iterdir())


@pytest.mark.parametrize("rank", ["0", "3"])
@pytest.mark.parametrize("line", [["levl=off", "--", "train.py"], ["--", "nowhere.py"], []])
def test_what_all_ranks_refuse_is_said_by_rank_0_while_the_others_wait_for_it(
    rank: str, line: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", rank)
    said_before: list[str] = []
    monkeypatch.setattr(command.time, "sleep", lambda seconds: said_before.append(capsys.readouterr().err))
    with pytest.raises(SystemExit) as leaving:
        attach(line)
    assert leaving.value.code == 2
    assert said_before == ([] if rank == "0" else [""]), "the launcher ends those that wait"
    assert len(capsys.readouterr().err.splitlines()) == 1
