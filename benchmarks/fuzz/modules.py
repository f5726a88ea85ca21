"""Run folders with module profiles that no rank would write."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz.streams import Folder
from benchmarks.fuzz.streams_sound import RANKS
from benchmarks.fuzz.values import SCALARS, dump, mutate
from distprof.facts.modules import ModuleTable, RankMemory
from distprof.storage.module_files import encode_modules, module_path

NAMES = ("", "blocks", "blocks.0", "blocks.0.mlp", "blocks.1", "blocks.1.mlp", "head")
PARENTS = (None, 0, 1, 2, 1, 4, 0)
STEPS = 4


def make_module_case(folder: Path, draws: random.Random) -> list[str]:
    """Writes a run folder in which some ranks' profiles are changed. Returns the changes."""
    Folder().write(folder)
    told = []
    for rank in range(RANKS):
        fields: Any = json.loads(encode_modules(_make_table(rank), "synthetic"))
        if draws.random() < 0.7:
            told += [f"rank {rank}: {mutate(fields, draws)}" for _ in range(draws.choice((1, 1, 2, 5)))]
        if draws.random() < 0.03:
            fields = draws.choice(SCALARS)
            told.append(f"rank {rank}: {str(fields)[:40]}")
        path = module_path(folder, rank)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dump(fields).encode("utf-8", "replace")[: draws.choice((None, None, None, 300))])
    return told


def write_tables(folder: Path) -> list[Path]:
    """Adds sound profiles to a run folder. Returns their paths."""
    paths = [module_path(folder, rank) for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_modules(_make_table(rank), "synthetic").encode())
    return paths


def _make_table(rank: int) -> ModuleTable:
    count = len(NAMES)
    times_ns = np.full((count, STEPS), 1e6 * (1 + 9 * (rank == 1)))
    return ModuleTable(
        rank=rank, model="Model", clock="host", counted_step=10, timed_steps=tuple(range(12, 12 + STEPS)), names=NAMES,
        kinds=("Model", "ModuleList", "Block", "MLP", "Block", "MLP", "Linear"), parents=PARENTS, calls=(1,) * count,
        own_parameters=(8,) * count, parameters=(8,) * count, held_parameters=(8,) * count,
        flops=((100, 200, 0),) * count, outside_flops=(0, 0, 0), forward_ns=times_ns, backward_ns=2 * times_ns,
        recomputed_ns=np.full((count, STEPS), np.nan),
        memory=RankMemory(parameters=32, gradients=32, optimizer=64, buffers=0, activations=100, communication=None),
        predicted_memory=None, peak_bytes=300, notes=("compiled",),
    )  # fmt: skip
