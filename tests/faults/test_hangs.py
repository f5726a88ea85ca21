"""Ordinary scripts that hang, each in its own way, under ``python -m distprof.attach``: the report names the rank that
did not come, the collective, and the place.

The jobs run at the same time, two gloo ranks each, and rank 1 is the one to blame.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_PARTIAL
from tests.attach.driver import PROGRAMS
from tests.faults.forked import Started, fork_ranks

RANKS, CULPRIT = 2, 1
TIMEOUT_S = 15.0
"""What ranks write when they have waited for 0.8 of it, they must have written when it ends: where six processes want
each core, two seconds are not always enough for that."""
LIMIT_S = 60.0
"""However busy this machine is."""
ATTACH = """\
import sys
from distprof.attach.command import attach
from distprof.profiler.job import exit_guard
exit_guard.EXIT_WAIT_S = 0.5
attach(sys.argv[1:])
"""
STALLED = f"no step had ended for {0.8 * TIMEOUT_S:.3g} s: "
ABSENT = "rank 1 did not come to all_reduce 1 of step 3 (default group), which rank 0 waits for: "

UNSAID = "rank 0 waits for rank 1 in all_reduce 1 of step 3 (default group): "


class Hang(NamedTuple):
    """What the report says of a case; ``{}``: a line of the script."""

    sentence: str
    state: str
    stack: tuple[str, ...] = ()
    """The functions of the script in which rank 1 was."""


CASES = {
    "endless": Hang(f"{STALLED}{ABSENT}it stands in step 3, data, at hangs.py:{{}} __getitem__", "stands",
                    ("__getitem__", "<module>")),
    "left": Hang(f"{ABSENT}it has left its training loop and completed; last seen after step 2", "completed"),
    "raises": Hang(f"{ABSENT}it failed with KeyError: 'broken record'; last seen in step 3, at hangs.py:{{}} "
                   "misbehave", "failed", ("misbehave", "<module>")),
    "stopped": Hang(f"{STALLED}{UNSAID}it is stopped (SIGSTOP, or a debugger); last seen in step 3, outside its "
                    "phases", "stopped"),
    "killed": Hang(f"{UNSAID}it is gone (killed, aborted, or left by os._exit); last seen in step 3, outside its "
                   "phases", "gone"),
    "lock": Hang(f"{STALLED}{UNSAID}it does not answer, in code that does not release Python's lock; last seen in "
                 "step 3, outside its phases, at hangs.py:{} lock_twice", "silent",
                 ("lock_twice", "misbehave", "<module>")),
    "message": Hang(f"{STALLED}the ranks wait for each other: rank 0 in all_reduce 1 of step 3 (default group), at "
                    "hangs.py:{} <module>; rank 1 in recv from rank 0, at hangs.py:{} misbehave", "stands",
                    ("misbehave", "<module>")),
    "before": Hang(f"before their first steps ranks had waited for {0.8 * TIMEOUT_S:.3g} s: rank 1 did not come to "
                   "barrier (number 4 of the default group), which rank 0 waits for: it stands before the first step, "
                   "at hangs.py:{} sleep_long", "stands", ("sleep_long", "<module>")),
}  # fmt: skip


CODES = {"left": 0, "raises": 1, "killed": -signal.SIGKILL}


class Ended(NamedTuple):
    """A job of which rank 0 has ended."""

    folder: Path
    said: str
    """By rank 0, on standard error."""
    culprit: Started


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Ended]]:
    places = {case: tmp_path_factory.mktemp(case) for case in CASES}
    script = str(PROGRAMS / "hangs.py")
    started: dict[str, list[Started]] = {
        case: fork_ranks(RANKS, ["run_dir=run", script, case, str(TIMEOUT_S)], place, before=ATTACH)
        for case, place in places.items()
    }

    def wait(case: str) -> Ended:
        first, culprit = started[case]
        _, said = first.communicate(LIMIT_S)
        assert first.returncode == 1
        return Ended(places[case] / "run", said, culprit)

    yield wait
    for processes in started.values():
        for process in processes:
            process.kill()
            while process.poll() is None:
                time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fault_03_the_report_names_who_did_not_come_to_which_collective(
    jobs: Callable[[str], Ended], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, said, process = jobs(case)
    if case in CODES:  # as without distprof, whatever its threads wait for
        process.communicate(LIMIT_S)
        assert process.returncode == CODES[case]
    assert run_verb(["report", str(folder), "--details", "--width", "1000"]) == EXIT_PARTIAL
    sentence, *rest = (line.rstrip() for line in capsys.readouterr().out.splitlines())
    hang: dict[str, Any] = json.loads((folder / "report.json").read_text())["hang"]
    culprit = next(stand for stand in hang["states"] if stand["ranks"] == [CULPRIT])
    expected = CASES[case]
    if case == "stopped" and culprit["where"] is not None:  # py-spy is there, and may read the process
        expected = Hang(f"{expected.sentence}, at hangs.py:{{}} misbehave", "stopped", ("misbehave", "<module>"))
    parts = [part.partition(" ")[2] if number else part for number, part in enumerate(sentence.split("hangs.py:"))]
    assert "hangs.py:{} ".join(parts) == expected.sentence
    ours = [line for line in said.splitlines() if line.startswith("distprof: ")]
    assert f"distprof: stopped early; {sentence}" in ours
    assert "where ranks stood" in "\n".join(rest)
    assert culprit["state"] == expected.state
    assert tuple(frame.split()[1] for frame in culprit["stack"] if "hangs.py" in frame) == expected.stack
    if hang["kind"] == "absent":
        assert (hang["absent"], hang["waiting"]) == ([CULPRIT], [0])
        assert next(stand for stand in hang["states"] if stand["ranks"] == [0])["where"].startswith("hangs.py:")
