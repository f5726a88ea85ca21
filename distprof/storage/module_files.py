"""The module profiles of a job's ranks: a file for each in ``modules/``, read back without trust."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from distprof.errors import DataError
from distprof.facts.arrays import FloatArray
from distprof.facts.modules import MEMORY_KINDS, ModuleTable, RankMemory
from distprof.facts.plain import make_plain
from distprof.storage.safe_open import open_file, open_folder

SCHEMA = "distprof.rank_modules/1"
MAX_FILE_BYTES = 64 << 20
MAX_TOTAL_BYTES = 512 << 20
"""Of all ranks together; what exceeds it is left out."""
MAX_MODULES = 1_000_000
MAX_STEPS = 10_000
MAX_DEPTH = 200
TIMES = ("forward_ns", "backward_ns", "recomputed_ns")
MEMORIES = ("memory", "predicted_memory")

_Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
_Time = Annotated[float, msgspec.Meta(ge=0, lt=2**53)]
_Texts = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4_000)], ...], msgspec.Meta(max_length=MAX_MODULES)]
_Wholes = Annotated[tuple[_Whole, ...], msgspec.Meta(max_length=MAX_MODULES)]
_Three = Annotated[tuple[_Whole, ...], msgspec.Meta(min_length=3, max_length=3)]
_Rows = Annotated[list[Annotated[list[_Time | None], msgspec.Meta(max_length=MAX_STEPS)]],
                  msgspec.Meta(max_length=MAX_MODULES)]  # fmt: skip


class _Memory(msgspec.Struct, gc=False, kw_only=True):
    """Bytes by kind."""

    parameters: _Whole | None
    gradients: _Whole | None
    optimizer: _Whole | None
    buffers: _Whole | None
    activations: _Whole | None
    communication: _Whole | None


class _Fields(msgspec.Struct, gc=False, kw_only=True):
    """What a file holds."""

    schema: str
    run_id: str
    rank: _Whole
    model: Annotated[str, msgspec.Meta(max_length=4_000)]
    clock: str
    counted_step: _Whole | None
    timed_steps: Annotated[tuple[_Whole, ...], msgspec.Meta(max_length=MAX_STEPS)]
    names: _Texts
    kinds: _Texts
    parents: Annotated[tuple[_Whole | None, ...], msgspec.Meta(max_length=MAX_MODULES)]
    calls: _Wholes
    own_parameters: _Wholes
    parameters: _Wholes
    held_parameters: _Wholes
    flops: Annotated[tuple[_Three, ...], msgspec.Meta(max_length=MAX_MODULES)]
    outside_flops: _Three
    forward_ns: _Rows
    backward_ns: _Rows
    recomputed_ns: _Rows
    memory: _Memory | None
    predicted_memory: _Memory | None
    peak_bytes: _Whole | None
    notes: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=4_000)], ...], msgspec.Meta(max_length=100)]


_DECODER = msgspec.json.Decoder(_Fields)


def module_path(folder: Path, rank: int) -> Path:
    """The path of a rank's module profile."""
    return folder / "modules" / f"rank-{rank:05d}.json"


def encode_modules(table: ModuleTable, run_id: str) -> str:
    """The content of a rank's file."""
    fields = msgspec.structs.asdict(table)
    fields |= {name: [[_round(value) for value in row] for row in fields[name].tolist()] for name in TIMES}
    fields |= {name: None if fields[name] is None else make_plain(fields[name]) for name in MEMORIES}
    return json.dumps({"schema": SCHEMA, "run_id": run_id, **fields}, separators=(",", ":"), allow_nan=False) + "\n"


def read_modules(folder: Path, root: int, run_id: str, ranks: Sequence[int]) -> tuple[list[ModuleTable], list[str]]:
    """The module profiles of a run, and why others are left out.

    Args:
        folder: The run folder.
        root: Its descriptor.
        run_id: Of the run.
        ranks: Whose profiles are looked for.
    """
    tables: list[ModuleTable] = []
    left_out: list[str] = []
    modules, size_bytes = module_path(folder, 0).parent, 0
    try:
        with open_folder(modules, inside=root) as inside:
            for rank in ranks:
                path = module_path(folder, rank)
                try:
                    data = _read(path, inside)
                    size_bytes += len(data)
                    if size_bytes > MAX_TOTAL_BYTES:
                        left_out.append(
                            f"module profiles from rank {rank} on are left out: more than {MAX_TOTAL_BYTES:,} bytes"
                        )
                        break
                    tables.append(_decode(data, path, run_id, rank))
                except FileNotFoundError:
                    continue
                except (DataError, OSError) as error:
                    reason = error.strerror if isinstance(error, OSError) else str(error).removeprefix(f"{path}: ")
                    left_out.append(f"the module profile of rank {rank} is left out: {reason}")
    except FileNotFoundError:
        pass
    except (DataError, OSError) as error:
        left_out.append(f"module profiles are left out: {error}")
    return tables, left_out


def _read(path: Path, inside: int) -> bytes:
    with open_file(path, inside=inside, max_bytes=MAX_FILE_BYTES) as file:
        return file.read(MAX_FILE_BYTES)


def _decode(data: bytes, path: Path, run_id: str, rank: int) -> ModuleTable:
    try:
        found = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not valid ({error})") from None
    if found.schema != SCHEMA:
        raise DataError(f"{path}: not written by this major version of distprof (expected {SCHEMA})")
    if found.run_id != run_id:
        raise DataError(f"{path}: belongs to another run")
    if found.rank != rank:
        raise DataError(f"{path}: says it is rank {found.rank}")
    _check(found, path)
    times: dict[str, Any] = {name: _make_array(getattr(found, name), len(found.timed_steps)) for name in TIMES}
    memories: dict[str, Any] = {name: _take_memory(getattr(found, name)) for name in MEMORIES}
    plain = {name: getattr(found, name) for name in {*ModuleTable.__struct_fields__} - {*TIMES, *MEMORIES}}
    return ModuleTable(**plain, **times, **memories)


def _take_memory(found: _Memory | None) -> RankMemory | None:
    return None if found is None else RankMemory(**{kind: getattr(found, kind) for kind in MEMORY_KINDS})


def _check(found: _Fields, path: Path) -> None:
    """Refuses a file that contradicts itself."""
    count, steps = len(found.names), len(found.timed_steps)
    columns = (found.kinds, found.parents, found.calls, found.own_parameters, found.parameters, found.held_parameters,
               found.flops, *(getattr(found, name) for name in TIMES))  # fmt: skip
    if not count or any(len(column) != count for column in columns):
        raise DataError(f"{path}: columns of different lengths")
    if any(len(row) != steps for name in TIMES for row in getattr(found, name)):
        raise DataError(f"{path}: rows of different lengths")
    if found.clock not in ("host", "device"):
        raise DataError(f"{path}: an unknown clock")
    depths = [0]
    for position, parent in enumerate(found.parents[1:], start=1):
        if parent is None or parent >= position or depths[parent] == MAX_DEPTH:
            raise DataError(f"{path}: module {position} is held by none before it, or too deep")
        depths.append(depths[parent] + 1)
    if found.parents[0] is not None or len({*found.names}) != count:
        raise DataError(f"{path}: the first module is not the model, or a name stands twice")


def _make_array(rows: list[list[float | None]], steps: int) -> FloatArray:
    return np.array(rows, dtype=np.float64).reshape(len(rows), steps)  # None becomes NaN


def _round(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None
