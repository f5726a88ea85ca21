"""Reduced ranks that no trace gives, behind valid checksums, and some that are damaged."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.fuzz.values import Raw, mutate
from benchmarks.synthetic_traces import make_kineto
from distprof.traces.kineto.read_kineto import read_kineto
from distprof.traces.reduce.phase_names import USUAL_NAMES
from distprof.traces.reduce.traced_rank import trace_rank
from distprof.traces.reduced_file import encode_rank, frame_content

RANKS = 2


def make_reduced_case(folder: Path, draws: random.Random) -> tuple[list[str], list[str]]:
    """Writes the ranks, one of them changed at least. Returns their names, and the changes."""
    names, told = [], []
    for rank in range(RANKS):
        tree: Any = msgspec.msgpack.decode(_make_content(rank), strict=False)
        if rank == 0 or draws.random() < 0.3:
            ways = draws.choices((_change_array, _change_number, mutate), (1, 2, 1), k=draws.choice((1, 1, 2, 5)))
            told += [change(tree, draws) for change in ways]
        data = bytearray(frame_content(msgspec.msgpack.encode(_make_plain(tree))))
        if draws.random() < 0.05:
            place = draws.randrange(len(data))
            data[place:] = draws.choice((b"", bytes([draws.randrange(256)]) + data[place + 1 :]))
            told.append(f"damaged at byte {place}")
        names.append(f"{rank}.distprof")
        (folder / names[-1]).write_bytes(data)
    return names, told


@functools.cache
def _make_content(rank: int) -> bytes:
    with tempfile.TemporaryDirectory(prefix="distprof-fuzz-") as name:
        path = Path(name) / f"rank{rank}.json"
        make_kineto(path, rank=rank, world_size=RANKS, num_events=1_500, num_steps=9, slow_rank=1, late_ns=400_000)
        trace = read_kineto(path)
        return encode_rank(trace_rank(replace(trace, head=replace(trace.head, path=path.name)), USUAL_NAMES))


def _make_plain(value: Any) -> Any:
    """What MessagePack can hold."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return max(min(value, 2**64 - 1), -(2**63))
    if isinstance(value, dict):
        return {_make_plain(key): _make_plain(item) for key, item in value.items()}
    return [_make_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _change_array(tree: Any, draws: random.Random) -> str:
    """Other numbers, of any size, in one array."""
    arrays = list(_list_arrays(tree))
    if not arrays:
        return "nothing"
    array = draws.choice(arrays)
    data = bytearray(array[1])
    for _ in range(draws.choice((1, 3, 100))):
        if len(data) >= 8:
            place = 8 * draws.randrange(len(data) // 8)
            data[place : place + 8] = draws.choice((draws.randbytes(8), bytes(8), b"\xff" * 8, data[:8]))
    array[1] = bytes(data)
    return f"an array of {array[0]}"


def _change_number(tree: Any, draws: random.Random) -> str:
    """Another number of the same type, so that it is not refused for its type."""
    places = list(_list_numbers(tree, ""))
    if not places:
        return "nothing"
    here, key, name = draws.choice(places)
    if not abs(here[key]) < 2**60:
        return "nothing"
    near = (here[key] + 1, here[key] - 1, 2 * here[key], here[key] // 2)
    here[key] = type(here[key])(draws.choice((*near, *near, 0, 1, 7, 1000, 2**31, 2**53, 2**61)))
    return f"{name}={here[key]}"


def _list_numbers(tree: Any, name: str) -> Any:
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(item, dict | list):
            yield from _list_numbers(item, f"{name}.{key}")
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield tree, key, f"{name}.{key}"


def _list_arrays(tree: Any) -> Any:
    if isinstance(tree, list) and len(tree) == 2 and isinstance(tree[0], list) and isinstance(tree[1], bytes):
        yield tree
    elif isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _list_arrays(item)
