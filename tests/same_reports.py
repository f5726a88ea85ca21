"""Do two versions of distprof report the same? For changes that move code but must leave every number unchanged.

    python -m tests.same_reports make FOLDER [TRACES]                  the inputs, once
    python -m tests.same_reports compare FOLDER BEFORE AFTER           Python interpreters that have distprof

Inputs are the traces of a folder, a synthetic export of Nsight Systems, 40 simulated runs, and four jobs over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.simulate import simulate
from benchmarks.verdicts.verdict_rows import ROWS
from tests.faults.run_folder import write_run
from tests.reference_export import make_reference_export

SIMULATED = 40
TRAIN = ("train=gpt2_tiny", "train.steps=30", "logger=none")
JOBS: dict[str, tuple[str, ...]] = {
    "ddp": ("strategy=ddp",), "fsdp": ("strategy=fsdp",), "accumulation": ("strategy=ddp", "train.grad_accum=2"),
    "late": ("strategy=ddp", "inject.rank=1", "inject.phase=forward", "inject.delay_ms=20"),
}  # fmt: skip


def make_inputs(folder: Path, traces: Path | None) -> None:
    """Writes all inputs for both versions: each entry of the folder gives one report."""
    folder.mkdir(parents=True)
    for trace in sorted(traces.iterdir()) if traces else ():
        (folder / f"real-{trace.name}").symlink_to(trace.resolve())
    make_reference_export().write(folder / "reference.sqlite")
    for seed in range(SIMULATED):
        job, job_seed = ROWS[("ddp-8", "fsdp-8", "ddp-8-nobody", "fsdp-8-nobody")[seed % 4]].draw(seed // 4 * 2, 50)
        write_run(folder / f"simulated-{seed:02d}", simulate(job, seed=job_seed, truth=False).run)
    for name, arguments in JOBS.items():
        command = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "distprof", *TRAIN]
        subprocess.run([sys.executable, "-m", *command, *arguments, f"run_dir={folder / f'gloo-{name}'}"], check=True)


def read_report(python: str, source: Path) -> dict[str, Any]:
    """A version's report, or how it failed."""
    with tempfile.TemporaryDirectory() as out:
        command = [python, "-m", "distprof", "report", source.name, "--out", out, "--width", "120"]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=source.parent, env=environment)
        path = Path(out) / "report.json"
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    shown = done.stdout.replace(out, "OUT").splitlines()
    return {"code": done.returncode, "stderr": done.stderr, "stdout": shown, "report": report}


def find_differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Where and how two values differ: keys that only one has, and values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            here = f"{path}.{key}"
            if key not in before or key not in after:
                yield here, "only before" if key in before else "only after"
            else:
                yield from find_differences(before[key], after[key], here)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from find_differences(one, other, f"{path}[]")
    elif type(before) is not type(after) or before != after:
        yield path, f"{str(before)[:150]} -> {str(after)[:150]}"


def compare(folder: Path, before: str, after: str) -> int:
    """Prints every path at which reports differ, with an example and a count. Returns 1 if any does."""
    sources = sorted(folder.iterdir())
    with ThreadPoolExecutor(2) as pool:
        first = list(pool.map(partial(read_report, before), sources))
        second = list(pool.map(partial(read_report, after), sources))
    places: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for source, one, other in zip(sources, first, second, strict=True):
        for path, how in find_differences(one, other):
            places[path] += 1
            examples.setdefault(path, f"{source.name}: {how}")
    same = sum(one == other for one, other in zip(first, second, strict=True))
    print(f"{same} of {len(sources)} reports are the same in every place")
    for path, count in sorted(places.items()):
        print(f"{count:6} x {path}\n         {examples[path]}")
    return 1 if places else 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    make = verbs.add_parser("make")
    make.add_argument("folder", type=Path)
    make.add_argument("traces", type=Path, nargs="?")
    both = verbs.add_parser("compare")
    both.add_argument("folder", type=Path)
    both.add_argument("before")
    both.add_argument("after")
    options = parser.parse_args()
    if options.verb == "compare":
        return compare(options.folder, options.before, options.after)
    make_inputs(options.folder, options.traces)
    return 0


if __name__ == "__main__":
    sys.exit(main())
