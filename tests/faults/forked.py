"""Runs commands from outside without paying for Python's imports each time: a process that has them forks for each.

What a user types is called as `distprof` would call it, in a process of its own, with its own streams, folder and
environment. The commands of one call run at the same time, as ranks do.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ranks import REPOSITORY, make_environment

LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command line, and what stands around it."""

    arguments: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    stdout: str = "file"
    """Or "full", a disk without room; "broken", a pipe whose reader has gone; "closed"."""
    stderr: str = "file"


@dataclass(frozen=True, kw_only=True)
class Done:
    """How it ended."""

    code: int
    out: str
    err: str
    seconds: float


def run(*commands: Command, cwd: Path) -> list[Done]:
    """Runs commands side by side in one folder, and waits for all."""
    server = _start()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.TemporaryDirectory() as outputs:
        asked = [
            {
                "arguments": list(command.arguments), "environment": make_environment(**command.environment),
                "streams": [command.stdout, command.stderr], "cwd": str(cwd), "place": f"{outputs}/{number}",
            }
            for number, command in enumerate(commands)
        ]  # fmt: skip
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        ended: list[tuple[int, float]] = json.loads(server.stdout.readline())
        texts = [[_read(f"{outputs}/{number}.{end}") for end in (1, 2)] for number in range(len(commands))]
    return [
        Done(code=code, out=out, err=err, seconds=seconds)
        for (code, seconds), (out, err) in zip(ended, texts, strict=True)
    ]


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace") if Path(path).exists() else ""


@functools.cache
def _start() -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).resolve()), str(LIMIT_S)]
    environment = make_environment(OMP_NUM_THREADS="1")
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
    )


def _serve(limit_s: float) -> None:
    """The process that forks."""
    import os
    import signal
    import time

    import distprof.application
    import distprof.cli
    import distprof.doctor.command
    import distprof.report_command
    import distprof.tables_command
    import distprof.train.job  # noqa: F401

    for line in sys.stdin:
        begin_s, ended = time.monotonic(), []
        children = [_fork(asked) for asked in json.loads(line)]
        for pid in children:
            while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
                if time.monotonic() - begin_s > limit_s:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.005)
            ended.append((os.waitstatus_to_exitcode(found[1]), time.monotonic() - begin_s))
        print(json.dumps(ended), flush=True)


def _fork(asked: dict[str, Any]) -> int:
    import os

    pid = os.fork()
    if pid == 0:
        os._exit(_call(asked))
    return pid


def _call(asked: dict[str, Any]) -> int:
    import os
    import traceback

    code: Any = 1
    try:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["cwd"])
        sys.path.insert(0, asked["cwd"])  # as `python -m` does
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, kind in enumerate(asked["streams"], start=1):
            _replace(number, kind, f"{asked['place']}.{number}")
        for stream in filter(None, (sys.stdout, sys.stderr)):
            encoding = asked["environment"].get("PYTHONIOENCODING", "utf-8")
            stream.reconfigure(encoding=encoding, errors="strict")  # type: ignore[attr-defined]
        sys.argv = ["distprof", *asked["arguments"]]
        from distprof.__main__ import main

        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:
        traceback.print_exc()
    code = code if isinstance(code, int) else 0 if code is None else 1
    for stream in filter(None, (sys.stdout, sys.stderr)):
        try:  # as Python does on its way out
            stream.flush()
        except BaseException:
            code = 120
    return code


def _replace(number: int, kind: str, path: str) -> None:
    """Puts what a shell would put in the place of standard output or error."""
    import os

    if kind == "closed":
        os.close(number)
        setattr(sys, {1: "stdout", 2: "stderr"}[number], None)
        return
    if kind == "broken":
        reader, new = os.pipe()
        os.close(reader)
    else:
        new = os.open("/dev/full" if kind == "full" else path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(new, number)
    os.close(new)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    _serve(float(sys.argv[1]))
