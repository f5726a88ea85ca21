"""Our projections compared with those of a real `nsys stats`, cell by cell."""

from __future__ import annotations

import csv
import io
import os
import random
import subprocess
from pathlib import Path

import pytest

from distprof.render.terminal.nsys_tables import write_csv
from distprof.traces.nsys.read_nsys import read_nsys
from distprof.traces.tables.projection import PROJECTIONS
from tests.nsys_file import Copy, EventType, Generation, SyntheticExport, make_training_export
from tests.reference_export import make_reference_export

NSYS = os.environ.get("NSYS", "nsys")
TABLES = ("nvtx_gpu_proj_sum", "nvtx_kern_sum")


def read_csv(text: str) -> list[list[str]]:
    return [row for row in csv.reader(io.StringIO(text)) if row]


def compare(file: Path, folder: Path) -> dict[str, list[list[str]]]:
    """Asserts that all cells are equal, and returns nsys' tables."""
    command = [NSYS, "stats", "--report", ",".join(TABLES), "--format", "csv", "--output", str(folder / "theirs")]
    done = subprocess.run(
        [*command, "--force-export=false", "--force-overwrite=true", str(file)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    theirs = {name: read_csv((folder / f"theirs_{name}.csv").read_text("utf-8")) for name in TABLES}
    traces = read_nsys(file, all_processes=True)
    for name in TABLES:
        assert read_csv(write_csv(PROJECTIONS[name](traces)).decode()) == theirs[name], name
    return theirs


class Thread:
    """Random ranges of one thread, nested or not, and random calls with what they launch."""

    def __init__(self, export: SyntheticExport, pid: int, thread: int, chance: random.Random) -> None:
        self._export, self._pid, self._thread, self._chance = export, pid, thread, chance
        self._nest(1_000, 5_000, depth=4)
        for _ in range(chance.choice([0, 2])):
            begin_ns = chance.randrange(1_000, 4_900)
            other = chance.choice([None, None, thread + 5])
            self._range(begin_ns, begin_ns + chance.randrange(1, 900), EventType.START_END, end_thread=other)
        if chance.random() < 0.5:
            self._range(chance.randrange(1_000, 4_500), None, EventType.PUSH_POP)
        for _ in range(60):
            self._call()

    def _nest(self, begin_ns: int, end_ns: int, *, depth: int) -> None:
        chance = self._chance
        if end_ns - begin_ns <= 4:
            return
        cuts = sorted(
            chance.sample(range(begin_ns, end_ns), min(chance.choice([0, 2, 4]), (end_ns - begin_ns) // 2 * 2))
        )
        for low_ns, high_ns in zip(cuts[::2], cuts[1::2], strict=True):
            self._range(low_ns, high_ns, EventType.PUSH_POP)
            if depth:
                self._nest(low_ns + chance.choice([0, 1]), high_ns - chance.choice([0, 1]), depth=depth - 1)

    def _range(self, begin_ns: int, end_ns: int | None, event: EventType, *, end_thread: int | None = None) -> None:
        chance = self._chance
        self._export.add_range(
            self._pid, chance.choice(["a", "layer, 1", "é ü"]), begin_ns, end_ns, domain=chance.choice(["", "app"]),
            thread=self._thread, event=event, registered=chance.random() < 0.5, end_thread=end_thread,
        )  # fmt: skip

    def _call(self) -> None:
        export, pid, chance = self._export, self._pid, self._chance
        called_ns, begin_ns = chance.randrange(900, 5_200), chance.randrange(1_000, 20_000)
        end_ns = begin_ns + chance.randrange(1, 500)
        long_ns = chance.randrange(0, 20)
        call = export.add_call(pid, "cudaLaunchKernel_v7000", called_ns, called_ns + long_ns, thread=self._thread)
        match chance.choice(["kernel"] * 4 + ["copy", "memset", "nodes", "graph", "nothing"]):
            case "kernel":
                name = chance.choice(["void gemm<1>(int)", "add(float*)"])
                export.add_kernel(pid, name, begin_ns, end_ns, correlation=call)
            case "copy":
                export.add_copy(pid, Copy.HOST_TO_DEVICE, 100, begin_ns, end_ns, correlation=call)
            case "memset":
                export.add_memset(pid, 100, begin_ns, end_ns, correlation=call)
            case "nodes":
                for node in range(3):
                    at_ns = begin_ns + 10 * node
                    export.add_kernel(pid, "node()", at_ns, at_ns + 5, correlation=call, graphNodeId=node)
            case "graph":
                export.add_graph(pid, 1, begin_ns, end_ns, correlation=call)


def make_random_export(seed: int, generation: Generation) -> SyntheticExport:
    """Six processes with two threads each; one kernel of each has no call."""
    export, chance = SyntheticExport(generation=generation), random.Random(seed)
    for pid in range(100, 106):
        export.add_process(pid)
        Thread(export, pid, pid, chance)
        Thread(export, pid, pid + 1000, chance)
        export.add_kernel(pid, "orphan()", 5_000, 5_100, correlation=99_999)
    return export


@pytest.mark.nsys
@pytest.mark.parametrize("generation", list(Generation))
def test_random_ranges_calls_and_graphs_of_many_threads(generation: Generation, tmp_path: Path) -> None:
    theirs = compare(make_random_export(3, generation).write(tmp_path / "synthetic.sqlite"), tmp_path)
    assert {row[1] for row in theirs["nvtx_gpu_proj_sum"][1:]} == {"PushPop", "StartEnd"}
    assert {len(rows) > 6 for rows in theirs.values()} == {True}


@pytest.mark.nsys
def test_jobs_that_look_like_jobs(tmp_path: Path) -> None:
    theirs = compare(make_training_export(num_ranks=2).write(tmp_path / "training.sqlite"), tmp_path)
    assert "distprof:backward" in {row[0] for row in theirs["nvtx_gpu_proj_sum"]}
    theirs = compare(make_reference_export().write(tmp_path / "reference.sqlite"), tmp_path)
    ranges = {row[0] for row in theirs["nvtx_gpu_proj_sum"]}
    assert "forward_pass" in ranges
    assert "backward_pass" not in ranges  # its kernels were launched by another thread: nsys shows none, we do
