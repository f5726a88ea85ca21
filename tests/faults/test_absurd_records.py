"""A run folder with absurd records behind valid checksums, from outside: counted, bounded, one line."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.fuzz.streams import Folder
from distprof.errors import EXIT_PARTIAL
from distprof.storage.record_lines import FIELDS
from tests.ranks import make_environment

ROOM_BYTES = 3 << 29
"""For the whole process, of which NumPy and the threads reserve a third."""


def report(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``distprof report`` on the folder, in a process limited to `ROOM_BYTES`."""
    return subprocess.run(
        [sys.executable, "-m", "distprof", "report", str(folder), "--width", "200"], text=True, capture_output=True,
        env=make_environment(OPENBLAS_NUM_THREADS="1"), timeout=120, check=False, cwd=folder,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (ROOM_BYTES, ROOM_BYTES)),
    )  # fmt: skip


def read_notes(folder: Path) -> str:
    """The report's notes about what was left out."""
    return "\n".join(json.loads((folder / "report.json").read_bytes())["coverage"]["notes"])


def get_steps(records: list[Any]) -> list[dict[str, Any]]:
    return [record for record in records if record["type"] == "step"]


def test_fault_36_absurd_records_cost_their_rank_or_their_step_and_are_counted(tmp_path: Path) -> None:
    made = Folder()
    made.meta["world_size"] = 6
    sound = json.dumps(made.files.pop("rank-00002.jsonl"))
    for rank in range(2, 6):
        made.files[f"rank-{rank:05d}.jsonl"] = json.loads(sound)
    for rank, records in enumerate(made.files.values()):
        records[0]["world_size"], records[0]["info"]["rank"] = 6, rank
    first, second, third, fourth, fifth, sixth = made.files.values()
    get_steps(first)[4]["row"][FIELDS.index("forward_host_ns")] = 10**18
    second[0]["info"]["notes"] = None
    third[0]["fields"][3] = ["shadow"]
    fourth[0]["schema"] = "distprof.rank/\u00b2.0"
    fifth[-1]["notes"] = None
    get_steps(sixth)[5]["segments"] = [0, "0", [2**62]]
    made.write(tmp_path / "run")
    done = report(tmp_path / "run")
    assert done.returncode == EXIT_PARTIAL
    left_out = re.findall(r"^distprof: left out: rank-0000(\d)", done.stderr, re.M)
    assert left_out == ["1", "2", "3"]
    assert len(done.stderr.splitlines()) == 3
    notes = read_notes(tmp_path / "run")
    assert "rank-00000.jsonl: 1 damaged records left out" in notes
    assert "rank-00001.jsonl" in notes and "header.notes=None: expected a list of texts" in notes
    assert "rank-00002.jsonl: damaged header: no list of distinct fields" in notes
    assert "rank-00003.jsonl: written as 'distprof.rank/\u00b2.0'" in notes
    assert "rank-00004.jsonl: 1 damaged records left out" in notes and "rank-00005.jsonl" not in notes
    percents = [float(text.replace(",", "")) for text in re.findall(r"([\d,.]+) %", done.stdout)]
    assert percents and max(percents) <= 100


def test_fault_36_ranks_without_a_common_step_take_memory_in_proportion_to_their_files(tmp_path: Path) -> None:
    """200 files with 75 steps that no other file has: 1 MB, but a row per rank and step would take 1.8 GB."""
    made = Folder()
    header, step = made.files["rank-00000.jsonl"][0], get_steps(made.files["rank-00000.jsonl"])[0]
    keys = ("step", "warmup", "failed", "step_host_ns")
    row = [step["row"][FIELDS.index(key)] for key in keys]
    made.files = {}
    made.meta["world_size"] = 200
    for rank in range(200):
        info = {**header["info"], "rank": rank}
        own: list[Any] = [{**header, "world_size": 200, "fields": list(keys), "info": info}]
        own += [{"type": "step", "row": [75 * rank + number, *row[1:]]} for number in range(75)]
        made.files[f"rank-{rank:05d}.jsonl"] = own
    made.write(tmp_path / "run")
    done = report(tmp_path / "run")
    assert (done.returncode, done.stderr) == (EXIT_PARTIAL, "")
    assert "13,690 steps left out: those recorded by the fewest of the 200 ranks" in read_notes(tmp_path / "run")
