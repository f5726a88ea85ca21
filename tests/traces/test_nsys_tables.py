"""Our tables compared with those of a real `nsys stats`, cell by cell."""

from __future__ import annotations

import csv
import io
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from distprof.render.terminal.nsys_tables import write_csv
from distprof.traces.nsys.read_nsys import read_nsys
from distprof.traces.tables.six_tables import TABLES, make_table
from tests.nsys_file import Copy, EventType, Generation, SyntheticExport, make_training_export, pack_pid

NO_CALL_CLASS = 31
"""Class of rows in OSRT_API that are not calls; nsys leaves them out."""
NSYS = os.environ.get("NSYS", "nsys")
TWO_PROCESSES = """
    import os, random, sys, threading, time, nvtx

    def work(steps):
        for step in range(steps):
            with nvtx.annotate("step", domain="distprof", payload=step):
                for name in ("forward", "backward, all of it", "optimizer"):
                    with nvtx.annotate(name, domain="distprof"), open(os.devnull, "wb") as file:
                        file.write(os.urandom(random.randrange(4096)))
            with nvtx.annotate("plain"):
                pass

    rank = os.environ.get("RANK")
    if rank is None:
        for rank in ("0", "1"):
            os.spawnve(os.P_NOWAIT, sys.executable, [sys.executable, __file__], {**os.environ, "RANK": rank})
        for _ in range(2):
            os.wait()
    else:
        nvtx.mark(f"rank={rank} world=2 host=here pid={os.getpid()}", domain="distprof")
        nvtx.start_range("never closed")
        other = threading.Thread(target=work, args=(3 + int(rank),))
        other.start()
        work(5)
        other.join()
        nvtx.push_range("left open")
"""


def ask_nsys(file: Path, folder: Path) -> dict[str, list[list[str]]]:
    """The tables of `nsys stats`, by name, without those that it skips because the file lacks the data."""
    command = [NSYS, "stats", "--report", ",".join(TABLES), "--format", "csv", "--output", str(folder / "theirs")]
    done = subprocess.run(
        [*command, "--force-export=false", "--force-overwrite=true", str(file)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    paths = {name: folder / f"theirs_{name}.csv" for name in TABLES}
    tables = {name: read_csv(path.read_text("utf-8")) for name, path in paths.items() if path.exists()}
    return {name: rows for name, rows in tables.items() if rows}


def read_csv(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text)) if row]


def compare(file: Path, folder: Path) -> dict[str, list[list[str]]]:
    """Asserts that all cells are equal, and returns the tables."""
    theirs = ask_nsys(file, folder)
    traces = read_nsys(file, all_processes=True)
    for name in TABLES:
        heads, *rows = read_csv(write_csv(make_table(name, traces)).decode())
        assert [heads, *rows] == theirs[name] if name in theirs else not rows, name
    return theirs


def make_lively_export(seed: int, generation: Generation) -> SyntheticExport:
    """A job of two ranks, with all sorts of durations, ties, names and kinds of rows in both and in a third process."""
    export, chance = make_training_export(num_ranks=2, num_steps=4, generation=generation), random.Random(seed)
    kernels = [f"void kernel_{number}<float, {number}>(float*)" for number in range(12)]
    calls = ["cudaLaunchKernel_v7000", "cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch_v10000", "cuInit_v2"]
    now_ns = 2_000_000_000
    for number in range(1_500):
        pid = chance.choice([4101, 4102, 4000])
        begin_ns = now_ns + chance.randrange(1_000_000)
        end_ns = begin_ns + chance.choice([5, 10, 20, chance.randrange(10**6), chance.randrange(10**9)])
        thread = pid + chance.randrange(3)
        call = export.add_call(pid, chance.choice(calls), begin_ns - 50, begin_ns - chance.randrange(50), thread=thread)
        node = number if chance.random() < 0.2 else None
        export.add_kernel(pid, chance.choice(kernels), begin_ns, end_ns, correlation=call, graphNodeId=node)
        size = chance.choice([0, 1, 500, 1_500, 4_096, 2**20, chance.randrange(10**10)])
        export.add_copy(pid, chance.choice(list(Copy)), size, begin_ns, end_ns, correlation=call)
        if number % 7 == 0:
            export.add_memset(pid, size, begin_ns, end_ns + 1, correlation=None)
            export.add_graph(pid, number, begin_ns, end_ns, correlation=call)
        name = chance.choice(["read", "write", "poll", "ioctl"])
        export.add_os_call(pid, name, begin_ns, begin_ns + chance.randrange(40))
        export.add("OSRT_API", start=begin_ns, end=end_ns, eventClass=NO_CALL_CLASS, nameId=export.intern(name),
                   globalTid=pack_pid(pid) | thread)  # fmt: skip
        export.add_range(
            pid, chance.choice(["step", "layer, 1", "é ü", "forward"]), begin_ns,
            None if chance.random() < 0.02 else end_ns, domain=chance.choice(["", "distprof", "app"]), thread=thread,
            event=chance.choice([EventType.PUSH_POP, EventType.START_END]), registered=chance.random() < 0.5,
        )  # fmt: skip
        now_ns += 1_000
    export.add_range(4101, "the last event of all", now_ns + 2 * 10**9, None, event=EventType.MARK)
    return export


@pytest.mark.nsys
@pytest.mark.parametrize("generation", list(Generation))
def test_a_synthetic_capture_with_kernels_copies_and_graphs_of_several_processes(
    generation: Generation, tmp_path: Path
) -> None:
    file = make_lively_export(7, generation).write(tmp_path / "synthetic.sqlite")
    theirs = compare(file, tmp_path)
    assert sorted(theirs) == sorted(TABLES)
    assert {len(rows) > 3 for rows in theirs.values()} == {True}


@pytest.mark.nsys
@pytest.mark.skipif(metadata.version("nvtx") > "0.2.11", reason="nvtx after 0.2.11 is silent under older nsys")
def test_a_real_capture_of_two_processes(tmp_path: Path) -> None:
    script = tmp_path / "work.py"
    script.write_text(textwrap.dedent(TWO_PROCESSES), encoding="utf-8")
    capture: Sequence[str] = (
        NSYS, "profile", "-t", "nvtx,osrt", "-s", "none", "--cpuctxsw=none", "--trace-fork-before-exec=true", "-o",
        "capture", "--export", "sqlite", sys.executable, str(script),
    )  # fmt: skip
    done = subprocess.run(capture, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (tmp_path / "capture.sqlite").exists(), done.stdout + done.stderr
    theirs = compare(tmp_path / "capture.sqlite", tmp_path)
    assert sorted(theirs) == ["nvtx_sum", "osrt_sum"]
    counts = {row[-1]: row[2] for row in theirs["nvtx_sum"]}
    assert (counts["distprof:step"], counts["distprof:backward, all of it"]) == ("17", "17")
