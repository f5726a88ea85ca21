"""`python -m benchmarks.gpu_check`: checks on a GPU, offline and within ten minutes, what distprof claims about GPUs.

A line per check, with its value, what is expected and the verdict; the same as JSON. Exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.attach_checks import check_attach
from benchmarks.gpu_check.cost_checks import check_cost
from benchmarks.gpu_check.device_checks import check_device
from benchmarks.gpu_check.gpu import NoGpu, RealGpu
from benchmarks.gpu_check.groups import GROUP_LIMIT_S, Group, call_check, run_groups
from benchmarks.gpu_check.job_checks import JOBS, check_job
from benchmarks.gpu_check.profiler_checks import check_profiler
from distprof.facts.plain import make_plain
from distprof.traces.nsys.nsys_tool import read_numbers

OLDEST_TORCH = (2, 11)


def main(arguments: list[str]) -> int:
    """Runs every check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="launch/gpu_check.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="where the JSON goes")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the groups that have this in their names")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a new folder, in which the jobs' run folders stay")
    parser.add_argument("--dry-run", action="store_true", help="everything but the calls to a GPU; nothing is judged")
    options = parser.parse_args(arguments)
    dry: bool = options.dry_run
    if read_numbers(torch.__version__) < OLDEST_TORCH:
        print(f"gpu_check: torch {torch.__version__}: it needs 2.11 or later: set PYTHON", file=sys.stderr)
        return 2
    if not dry and not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU here: --dry-run runs everything but the calls to one", file=sys.stderr)
        return 2
    card = "no GPU" if dry else torch.cuda.get_device_name(0)
    print(f"{card}, torch {torch.__version__}, Python {platform.python_version()}", flush=True)
    results = []
    with _open_folder(options.keep) as folder:
        groups = {name: group for name, group in list_groups(folder, dry=dry).items() if options.only in name}
        for result in run_groups(groups):
            print(result.describe(dry=dry), flush=True)
            results.append(result)
    failed, skipped = (sum(result.judge(dry=dry) == kind for result in results) for kind in ("FAILED", "skipped"))
    checks = [{**make_plain(result), "verdict": result.judge(dry=dry)} for result in results]
    facts = {"device": card, "torch": torch.__version__, "cuda": torch.version.cuda, "dry_run": dry, "checks": checks}
    options.out.write_text(json.dumps(_make_strict(facts), indent=2) + "\n")
    print(f"{len(results)} checks, {failed} failed, {skipped} skipped: {options.out}")
    return 1 if failed else 0


@contextlib.contextmanager
def _open_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True)
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="distprof-gpu-") as folder:
        yield Path(folder)


def list_groups(folder: Path, *, dry: bool) -> dict[str, Group]:
    """What is checked here, by name."""
    make = NoGpu if dry else RealGpu
    gpus = NoGpu().count() if dry else torch.cuda.device_count()
    groups = {
        check.__name__: Group(run=partial(call_check, check, make, dry), limit_s=GROUP_LIMIT_S, alone=True)
        for check in (check_device, check_profiler, check_cost)
    }
    for number, job in enumerate(JOBS):
        if job.gpus <= gpus:
            run = partial(check_job, job, folder / f"{number:02d}", dry=dry)
            groups[job.name] = Group(run=run, limit_s=job.limit_s)
    groups["check_attach"] = Group(run=partial(check_attach, dry=dry), limit_s=GROUP_LIMIT_S)
    return groups


def _make_strict(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {key: _make_strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_strict(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
