"""Hangs are suspected in seconds, whatever the time-out: the report names who did not come while the job still hangs.

The jobs run at the same time, two gloo ranks each, with a time-out of two minutes, under ``python -m distprof.attach``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_PARTIAL
from tests.attach.driver import PROGRAMS
from tests.faults.forked import Started, fork_ranks
from tests.faults.test_hangs import ATTACH

LEAVING = f"{ATTACH}sys.exit(0)\n"
TIMEOUT_S, LIMIT_S = 120.0, 90.0
WITHIN_S = 16.0
"""After 10 s, which is up to 12 s when it is looked every two seconds; twice, and two looks apart."""
CASES = {
    "sleeps": "rank 1 did not come to all_reduce 1 of step 14 (default group), which rank 0 waits for: it stands in "
    "step 14, outside its phases, at hangs.py: sleep_long",
    "mismatch": "the ranks are in different collectives: rank 0 in all_reduce 1 of step 14 (default group), at "
    "hangs.py: <module>; rank 1 in broadcast 1 of step 14 (default group), at hangs.py: misbehave",
}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, list[Started]]]]:
    places = {case: tmp_path_factory.mktemp(case) for case in [*CASES, "evaluates"]}
    script = str(PROGRAMS / "hangs.py")
    started = {
        case: (place, fork_ranks(2, ["run_dir=run", script, case, str(TIMEOUT_S)], place, before=LEAVING))
        for case, place in places.items()
    }
    yield started
    for _, processes in started.values():
        for process in processes:
            process.kill()
            while process.poll() is None:
                time.sleep(0.01)


def wait_until(seen: Callable[[], bool], read: Callable[[], object] = str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not seen():
        assert time.monotonic() < until_s, read()
        time.sleep(0.05)


def read_stands(place: Path) -> list[dict[str, Any]]:
    """What both ranks have written about where they stand, as often as they have."""
    texts = [path.read_text() for path in sorted((place / "run/ranks").glob("*.jsonl"))]
    return [json.loads(line)["stand"] for text in texts for line in text.splitlines() if '"state"' in line]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fault_03_a_hang_is_suspected_and_confirmed_long_before_the_time_out(
    jobs: dict[str, tuple[Path, list[Started]]], case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, (first, culprit) = jobs[case]

    def confirmed() -> bool:
        return sum(bool(stand) and not stand["suspected"] for stand in read_stands(place)) >= 4  # each writes it twice

    wait_until(confirmed)
    assert first.poll() is None and culprit.poll() is None
    assert run_verb(["report", str(place / "run"), "--width", "1000"]) == EXIT_PARTIAL
    sentence = re.sub(r"py:\d+", "py:", capsys.readouterr().out.splitlines()[0].rstrip())
    since = re.match(r"no step had ended for ([\d.]+) s: ", sentence)
    assert since is not None and 10 <= float(since[1]) <= WITHIN_S
    assert sentence.removeprefix(since[0]) == CASES[case]
    wait_until(lambda: "no step had ended" in first.read()[1], first.read)
    said = re.sub(r"py:\d+", "py:", first.read()[1])  # a busy machine may have confirmed it by then
    assert re.search(f"distprof: (a hang is suspected: )?no step had ended for 1\\d s: {re.escape(CASES[case])}", said)


@pytest.mark.slow
def test_a_long_evaluation_on_one_rank_is_taken_back_and_counted(
    jobs: dict[str, tuple[Path, list[Started]]], capsys: pytest.CaptureFixture[str]
) -> None:
    place, processes = jobs["evaluates"]
    errors = [process.communicate(LIMIT_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert any(stand["suspected"] for stand in read_stands(place)) and not (place / "run/hang.suspected").exists()
    told = (
        "rank 1 did not come to all_reduce 1 of step 14" in errors[0]
    )  # unless it has ended before that was worked out
    assert ("the suspected hang has ended, " in errors[0]) is told
    assert "suspected" not in errors[1]
    assert run_verb(["report", str(place / "run"), "--details", "--width", "1000"]) == 0
    shown = capsys.readouterr().out
    assert "1 suspected hang, which ended" in shown, (errors, shown)
    assert json.loads((place / "run/report.json").read_text())["hang"] is None
