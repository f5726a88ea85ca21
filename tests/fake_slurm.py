"""Slurm on this machine, as far as a recipe needs it: `sbatch`, `srun` and `scontrol`, which refuse what Slurm would.

The three are this file, run under their names. As in Slurm, the batch script is a copy elsewhere, options stand in its
first lines, too, and tasks learn from their environment which node they are on. A node is a command that is put before
a task's own. Every call is written down.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

JOB_ID = 77
NODE_LIST = "node[0-1]"
"""What stands for all nodes; only `scontrol` knows what it means."""


class FakeSlurm(Struct, frozen=True, kw_only=True):
    """A cluster in a folder."""

    place: Path
    nodes: Mapping[str, Sequence[str]]
    """By name, the command that makes a task one of this node."""

    def install(self) -> None:
        """Makes the commands, in ``bin``."""
        (self.place / "bin").mkdir(parents=True)
        (self.place / "nodes.json").write_text(json.dumps({name: list(words) for name, words in self.nodes.items()}))
        for name in COMMANDS:
            path = self.place / "bin" / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{__file__}" {name} "$@"\n')
            path.chmod(0o755)

    def name_environment(self) -> dict[str, str]:
        """What a shell on this cluster has in its environment."""
        return {"PATH": f"{self.place / 'bin'}:{os.environ['PATH']}", "FAKE_SLURM": str(self.place)}

    def read_calls(self, command: str) -> list[dict[str, Any]]:
        """The calls of a command so far, in order: its options, and what it was to run as ``words``."""
        with contextlib.suppress(FileNotFoundError):
            calls = [json.loads(line) for line in (self.place / "calls.jsonl").read_text().splitlines()]
            return [call for call in calls if call.pop("command") == command]
        return []


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}", file=sys.stderr)
        raise SystemExit(255)


def _read_options(command: str, names: Sequence[str], arguments: Sequence[str]) -> dict[str, Any]:
    parser = _Parser(prog=command, allow_abbrev=False, add_help=False)
    for name in names:
        flag, _, kind = name.partition(":")
        options: dict[str, Any] = {"number": {"type": int}, "flag": {"action": "store_true"}}.get(kind, {})
        parser.add_argument(f"--{flag}", **options)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if value not in (None, False)}


def _find_place() -> Path:
    return Path(os.environ["FAKE_SLURM"])


def _write_down(command: str, call: Mapping[str, Any]) -> None:
    with (_find_place() / "calls.jsonl").open("a") as file:
        file.write(json.dumps({"command": command, **call}) + "\n")


_OF_JOB = (
    "nodes:number", "gpus-per-node", "ntasks-per-node:number", "requeue:flag", "signal", "exclusive:flag", "job-name",
    "open-mode",
)  # fmt: skip


def run_sbatch(arguments: Sequence[str]) -> int:
    """Runs a job to its end, again if it was queued again; Slurm would return at once."""
    call = _read_options("sbatch", _OF_JOB, arguments)
    script, *words = call["words"]
    text = Path(script).read_text()
    head = text[: re.search(r"^[^#\n]", text, re.M).start()]  # type: ignore[union-attr]  # options end where commands begin
    inside = [word for line in re.findall(r"^#SBATCH (.*)$", head, re.M) for word in line.split()]
    asked = {**_read_options("sbatch", _OF_JOB, inside), **call}
    _write_down("sbatch", asked)
    nodes = json.loads((_find_place() / "nodes.json").read_text())
    if asked["nodes"] != len(nodes):
        print("sbatch: error: Batch job submission failed: Requested node configuration is not available")
        return 1
    spool = _find_place() / f"spool/job{JOB_ID:05d}"
    spool.mkdir(parents=True)
    shutil.copy(script, spool / "slurm_script")
    told = {"SLURM_JOB_ID": str(JOB_ID), "SLURM_JOB_NODELIST": NODE_LIST, "SLURM_JOB_NUM_NODES": str(asked["nodes"]),
            "SLURM_SUBMIT_DIR": os.getcwd(), "SLURM_NTASKS_PER_NODE": str(asked.get("ntasks_per_node", 1))}  # fmt: skip
    if gpus := asked.get("gpus_per_node"):
        told |= {"SLURM_GPUS_PER_NODE": gpus, "SLURM_GPUS_ON_NODE": gpus.rpartition(":")[2]}
    for count in range(10):
        again = {"SLURM_RESTART_COUNT": str(count)} if count else {}
        with subprocess.Popen([str(spool / "slurm_script"), *words], env={**os.environ, **told, **again}) as batch:
            (_find_place() / "batch.pid").write_text(str(batch.pid))
        requeued = _find_place() / "requeued"
        if not requeued.exists():
            return batch.returncode
        requeued.unlink()
    return 1


_OF_STEP = (
    "nodes:number", "ntasks:number", "ntasks-per-node:number", "cpu-bind", "kill-on-bad-exit", "label:flag", "nodelist",
)  # fmt: skip


def run_srun(arguments: Sequence[str]) -> int:
    """Runs a task on each of the nodes; the exit code is the highest of theirs."""
    call = _read_options("srun", _OF_STEP, arguments)
    _write_down("srun", call)
    nodes = json.loads((_find_place() / "nodes.json").read_text())
    names = call["nodelist"].split(",") if "nodelist" in call else list(nodes)
    if not {*names} <= {*nodes} or not call["nodes"] == call["ntasks"] == len(names):
        print("srun: error: Unable to create step for job: Requested node configuration is not available")
        return 1
    tasks = []
    for number, name in enumerate(names):
        told = {"SLURM_NODEID": str(number), "SLURM_PROCID": str(number), "SLURMD_NODENAME": name}
        output = subprocess.PIPE if call.get("label") else None
        tasks.append(
            subprocess.Popen([*nodes[name], *call["words"]], env={**os.environ, **told}, stdout=output, text=True)
        )

    def stop(*_: object) -> None:
        for task in tasks:
            task.terminate()

    signal.signal(signal.SIGTERM, stop)
    codes = [0] * len(tasks)

    def follow(number: int) -> None:
        lines, _ = tasks[number].communicate()
        print("".join(f"{number}: {line}\n" for line in (lines or "").splitlines()), end="", flush=True)
        code = tasks[number].returncode
        codes[number] = code if code >= 0 else 128 - code
        if code and call.get("kill_on_bad_exit") == "1":
            stop()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.05)  # signals are handled in between
    return max(codes)


def run_scontrol(arguments: Sequence[str]) -> int:
    """``show hostnames`` and ``requeue``."""
    _write_down("scontrol", {"words": list(arguments)})
    if list(arguments) == ["show", "hostnames", NODE_LIST]:
        print("\n".join(json.loads((_find_place() / "nodes.json").read_text())))
        return 0
    if list(arguments) == ["requeue", str(JOB_ID)]:
        (_find_place() / "requeued").touch()
        return 0
    print(f"scontrol: error: {' '.join(arguments)}", file=sys.stderr)
    return 1


COMMANDS = {"sbatch": run_sbatch, "srun": run_srun, "scontrol": run_scontrol}

if __name__ == "__main__":
    raise SystemExit(COMMANDS[sys.argv[1]](sys.argv[2:]))
