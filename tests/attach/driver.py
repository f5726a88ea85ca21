"""Runs the programs on one rank, each plain and then watched, in one process: what starts slowly starts once."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).resolve().parent / "programs"


def main() -> int:
    """Writes what came out into ``RANK.json`` of the current folder.

    ``sys.argv[1]``: by run, its program, arguments, overrides of distprof and environment of the ranks, and ports.
    """
    rank, results = os.environ["RANK"], {}
    for name, run in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")).items():
        environment = run["environment"].get(rank, {})
        os.environ.update(environment)
        plain, before = _run(run, run["ports"][0], watched=False), _list_torch()
        watched, after = _run(run, run["ports"][1], watched=True), _list_torch()
        results[name] = {"plain": plain, "watched": watched, "put_back": before == after}
        for variable in environment:
            del os.environ[variable]
    Path(f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    return 0


def _run(run: dict[str, Any], port: int, *, watched: bool) -> dict[str, Any]:
    import torch.distributed as dist

    from distprof.attach.command import attach, run_script
    from tests.attach.broken import break_parts
    from tests.attach.other_torch import differ

    if run["alone"]:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            os.environ.pop(name, None)
    os.environ["MASTER_PORT"] = str(port)
    path, arguments = str(PROGRAMS / f"{run['program']}.py"), run["arguments"]
    kept, code, error, out = (sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook), None, None, io.StringIO()
    try:
        other = differ() if run.get("other_torch") else contextlib.nullcontext()
        with contextlib.redirect_stdout(out), other, break_parts(run["broken"] if watched else []):
            if watched:
                attach([*run["overrides"], "--", path, *arguments])
            else:
                run_script(path, arguments)
    except SystemExit as leaving:
        code = leaving.code
    except Exception as raised:
        error = repr(raised)
        if dist.is_initialized():  # or no program after this one could make a group
            dist.destroy_process_group()
    finally:
        _kept.append(sys.modules["__main__"])
        sys.argv, sys.path[:], sys.modules["__main__"], sys.excepthook = kept
    return {"out": out.getvalue(), "code": code, "error": error}


_kept: list[object] = []
"""Torch may deadlock where the last reference to a DDP model goes: Python's end never drops those of a script."""


def _list_torch() -> list[object]:
    """Everything of torch and of the process that distprof may replace."""
    import torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    import torch.distributed.checkpoint
    from torch.distributed import fsdp
    from torch.optim import optimizer

    places = [
        torch, torch.serialization, torch.autograd, torch.nn.Module, torch.nn.utils, torch.nn.utils.clip_grad,
        torch.nn.parallel.DistributedDataParallel, torch.utils.data.DataLoader, torch.optim.Optimizer,
        torch.utils.data.dataloader._BaseDataLoaderIter, torch.utils.data.dataloader._SingleProcessDataLoaderIter,
        torch.utils.data.dataloader._MultiProcessingDataLoaderIter, torch.utils.data._utils.fetch._MapDatasetFetcher,
        torch.amp.GradScaler, dist, dist.distributed_c10d,
        dist.checkpoint, dist.Work, dist.ProcessGroup, functional, fsdp.FullyShardedDataParallel,
    ]  # fmt: skip
    functions = [id(value) for place in places for _, value in sorted(vars(place).items()) if callable(value)]
    hooks = [vars(module) for module in (optimizer, torch.nn.modules.module)]
    counted = [(name, len(value)) for each in hooks for name, value in each.items() if name.startswith("_global_")
               and isinstance(value, dict)]  # fmt: skip
    process = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)]
    lists = [list(map(id, each)) for each in (sys.meta_path, warnings.filters, gc.callbacks)]
    return [*functions, *counted, *process, *lists]
