"""Runs one case in its own process, with limits on time and memory, and checks its results."""

from __future__ import annotations

import contextlib
import os
import resource
import runpy
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.fuzz.cases import Case, make_case, write_sound
from benchmarks.fuzz.verdict import judge

PROGRAM = "distprof"
ROOM_BYTES = 1 << 30
"""Address space that a command may use beyond the process' own: its threads alone reserve half of it."""
NOT_MADE = 97
"""In place of an exit code if a case could not be made: a bug in the fuzzer itself."""


class Plan(Struct, frozen=True, kw_only=True):
    """What all cases have in common."""

    seed: int
    kinds: tuple[str, ...]
    limit_s: float
    """A case that takes longer counts as hanging."""
    keep: Path | None
    """Where to keep inputs that fail. None: nowhere."""


class TrialOutcome(Struct, frozen=True, kw_only=True):
    """The result of a case."""

    number: int
    kind: str
    exit_code: int
    wrong: tuple[str, ...]
    """What is wrong; empty: nothing."""
    wall_s: float
    kept: str | None
    """Where the input was kept."""


def warm_up() -> None:
    """Runs sound inputs in this process, so that its forks find every module loaded.

    Raises:
        AssertionError: A sound input gives no report.
    """
    with tempfile.TemporaryDirectory(prefix="distprof-fuzz-") as name, contextlib.chdir(name):
        paths = write_sound(Path(name))
        with open("shown", "w", encoding="utf-8") as shown, contextlib.redirect_stdout(shown):
            for arguments in [*(["report", path, "--out", "out"] for path in paths), ["tables", *paths[1:]]]:
                try:
                    _call_program(arguments)
                except SystemExit as leaving:
                    assert leaving.code in (None, 0, 3), f"{arguments}: exit code {leaving.code}"


def _call_program(arguments: Sequence[str]) -> None:
    """Does what ``python -m distprof ARGUMENTS`` does, in this process."""
    sys.argv = ["distprof", *arguments]
    sys.modules.pop(f"{PROGRAM}.__main__", None)  # may be loaded already by the fuzzer, and Python would warn
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def run_trial(plan: Plan, number: int) -> TrialOutcome:
    """Makes the case and runs its command in a fork of this process, which must not have threads."""
    folder = Path(tempfile.mkdtemp(prefix="distprof-fuzz-"))
    begin_s = time.monotonic()
    try:
        try:
            case = make_case(number, plan.seed, plan.kinds, folder)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            own = f"the fuzzer failed to make it: {type(error).__name__}: {error}"
            return TrialOutcome(number=number, kind="?", exit_code=NOT_MADE, wrong=(own,), wall_s=0.0, kept=None)
        exit_code, in_time = _run(case.arguments, folder, plan.limit_s)
        wall_s = time.monotonic() - begin_s
        stdout, stderr = ((folder / name).read_text("utf-8", "replace") for name in ("stdout", "stderr"))
        wrong = judge(exit_code, stdout, stderr, folder / "out") if in_time else [f"no end after {plan.limit_s:g} s"]
        kept = _keep(plan.keep, number, plan.seed, folder, case, wrong) if wrong and plan.keep else None
        return TrialOutcome(
            number=number, kind=case.kind, exit_code=exit_code, wrong=tuple(wrong), wall_s=wall_s, kept=kept
        )  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(arguments: Sequence[str], folder: Path, limit_s: float) -> tuple[int, bool]:
    """Exit code, negative for a signal, and whether it ended in time."""
    child = os.fork()
    if not child:
        _be_the_command(arguments, folder)
    handle = os.pidfd_open(child)
    try:
        ended = select.select([handle], [], [], limit_s)[0]
    finally:
        os.close(handle)
    if not ended:
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bool(ended)


def _be_the_command(arguments: Sequence[str], folder: Path) -> None:
    """Turns this fork into ``python -m distprof ARGUMENTS`` in the folder; never returns."""
    code = 0
    try:
        os.setsid()
        os.chdir(folder)
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8") for number in (1, 2))
        now_bytes = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now_bytes + ROOM_BYTES,) * 2)
        _call_program(arguments)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code & 0xFF)


def _keep(keep: Path, number: int, seed: int, folder: Path, case: Case, wrong: Sequence[str]) -> str:
    """Copies the input, with a note about its changes and how to repeat it."""
    target = keep / f"{case.kind}-{seed}-{number}"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(folder, target, symlinks=True)
    lines = [f"distprof {' '.join(map(repr, case.arguments))}", "", *wrong, "", *case.told]
    (target / "CASE.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="replace")
    return str(target)
