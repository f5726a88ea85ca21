"""Runs one framework's program on one rank, several times in one process: what starts slowly starts once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.attach.driver import _run


def main() -> int:
    """Writes what came out into ``RANK.json`` of the current folder.

    ``sys.argv[1]``: by run, what `tests.attach.driver` runs, whether under attach, and how slow which rank's disk is.
    """
    rank, results = os.environ["RANK"], {}
    for name, run in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        os.environ["DISK_MS"] = run["disk_ms"].get(rank, "0")
        results[name] = _run(run, run["port"], watched=run["watched"])
        _forget_process_group()
    Path(f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    return 0


def _forget_process_group() -> None:
    """Accelerate, which the Trainer of Transformers uses, and DeepSpeed keep it for the life of a process."""
    if "deepspeed.comm.comm" in sys.modules:
        import deepspeed
        import torch.distributed as dist

        deepspeed.comm.comm.cdb = None
        groups = deepspeed.utils.groups
        for name, value in list(vars(groups).items()):
            if isinstance(value, dist.ProcessGroup):
                setattr(groups, name, None)
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)
