"""Runs one framework's program on two ranks, several times in one process each: what starts slowly starts once."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from tests.attach.driver import _run

FIRST = {
    "transformers": "transformers.trainer", "lightning": "lightning.pytorch", "accelerate": "accelerate",
    "deepspeed": "torch",
}  # fmt: skip
"""What is imported before there are two: by framework, what takes long, and leaves no thread."""


def start(framework: str) -> int:
    """Becomes both ranks, and ends when both have, with what ended badly."""
    importlib.import_module(FIRST[framework])
    other = os.fork()
    if not other:
        os.environ.update(RANK="1", LOCAL_RANK="1")
        try:
            os._exit(main())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    code = main()
    return code or os.waitstatus_to_exitcode(os.waitpid(other, 0)[1])


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
