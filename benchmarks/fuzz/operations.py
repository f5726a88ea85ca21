"""Tables of operations with cells, rows and columns that no logger writes."""

from __future__ import annotations

import functools
import random
from pathlib import Path

from benchmarks.fuzz.values import TEXTS
from benchmarks.simulate.pipeline_job import PipelineJob, make_operations
from distprof.facts.operations import KINDS

HEADS = ("dp", "pp", "step", "kind", "start_s", "duration_s", "number", "chunk", "micro_batch", "rank", "tp")
CELLS = (
    "", "0", "1", "-1", "2", "3", "1e308", "-1e308", "1e999", "nan", "-inf", "0.5", "1e-300", "9007199254740993",
    "65536", "4294967296", "1e10", "1e-9", "gc", "optimizer", "forward-send", "backward-recv", "0x1", "1_0", " 1 ",
)  # fmt: skip
NEW_HEADS = ("stage", "dp_rank", "start_ns", "duration", "optype", "gmc", "", "tp_rank", "mb_id")


@functools.cache
def make_sound_table() -> tuple[tuple[str, ...], ...]:
    """Two replicas of two stages, nine steps."""
    found = make_operations(PipelineJob(replicas=2, stages=2, micro_batches=2, steps=9, collect_every=4))
    columns = (
        found.replica, found.stage, found.step, [KINDS[kind] for kind in found.kind.tolist()], found.start_ns / 1e9,
        found.duration_ns / 1e9, found.number, found.chunk, found.micro_batch, found.rank, found.rank * 0,
    )  # fmt: skip
    return tuple(zip(*(map(str, column) for column in columns), strict=True))


def make_operations_case(folder: Path, draws: random.Random) -> tuple[str, list[str]]:
    """Writes a changed table; returns its name and the changes."""
    heads, rows = list(HEADS), [list(row) for row in make_sound_table()]
    changes = [_change(heads, rows, draws) for _ in range(draws.choice((1, 1, 2, 4)))]
    text = "\n".join([",".join(heads), *(",".join(row) for row in rows)]).encode("utf-8", "surrogatepass") + b"\n"
    name = draws.choice(("a.csv", "a.csv", "a.parquet"))
    content = bytearray(text if name == "a.csv" else _pack(heads, rows) or text)
    if draws.random() < (0.1 if name == "a.csv" else 0.6):
        for _ in range(draws.choice((1, 3, 20))):
            content[draws.randrange(len(content))] = draws.choice((0, 255, draws.randrange(256)))
        changes.append("bytes")
    if draws.random() < 0.1:
        del content[draws.randrange(len(content)) :]
        changes.append("cut")
    (folder / name).write_bytes(content)
    return name, changes


def _change(heads: list[str], rows: list[list[str]], draws: random.Random) -> str:
    how = draws.choice(("cell", "cell", "column", "lose", "repeat", "kind", "swap", "head", "drop", "shuffle", "add"))
    place, chosen = (
        draws.randrange(len(heads)),
        draws.sample(range(len(rows)), min(len(rows), draws.choice((1, 3, 40)))),
    )
    if how == "cell":
        for row in chosen:
            rows[row][place] = draws.choice((*CELLS, *TEXTS[:4]))
    elif how == "column":
        cell = draws.choice(CELLS)
        for cells in rows:
            cells[place] = cell
    elif how in ("lose", "drop"):
        lost = {*chosen} if how == "lose" else {at for at, row in enumerate(rows) if row[3] == rows[chosen[0]][3]}
        rows[:] = [row for at, row in enumerate(rows) if at not in lost] or rows[:1]
    elif how == "repeat":
        rows += [list(rows[row]) for row in chosen]
    elif how == "kind":
        for row in chosen:
            rows[row][3] = draws.choice(KINDS)
    elif how == "swap":
        for row in chosen:
            other = draws.randrange(len(rows))
            rows[row][place], rows[other][place] = rows[other][place], rows[row][place]
    elif how == "head":
        heads[place] = draws.choice(NEW_HEADS)
    elif how == "shuffle":
        draws.shuffle(rows)
    else:
        factor = draws.choice((1e-9, 1e3, 1e9))
        for row in chosen:
            rows[row][5] = _scale(rows[row][5], factor)
    return f"{how} {heads[place]}"


def _scale(cell: str, factor: float) -> str:
    try:
        return str(float(cell) * factor)
    except ValueError:
        return cell


def _pack(heads: list[str], rows: list[list[str]]) -> bytes | None:
    """The table as Parquet, numbers where they are numbers; None: without pyarrow."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return None
    columns = {}
    for at, head in enumerate(heads):
        cells = [row[at] for row in rows]
        try:
            columns[head] = pyarrow.array([None if not cell else float(cell) for cell in cells])
        except ValueError:
            columns[head] = pyarrow.array([cell.encode("utf-8", "replace").decode() for cell in cells])
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(columns), sink)
    return bytes(sink.getvalue())
