"""Tables for other programs: the same columns as CSV and as Parquet."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from distprof.render.units import clean_cell
from distprof.storage.whole_file import write_whole

Columns = Mapping[str, Sequence[str | float | int | None]]
"""Columns of equal length by their heads; None: not measured."""
NO_PARQUET = "Parquet files need pyarrow: pip install 'distprof[parquet]'"


NUMBERS = {"ns", "s", "ratio", "bytes", "flops", "rank", "calls", "parameters"}
"""Last words of the heads of columns of numbers, by which those are known in which nothing was measured."""


def list_writers(tables: Mapping[str, Columns]) -> dict[str, Callable[[Path], None]]:
    """What writes tables atomically, by the names of their files. Parquet only where pyarrow is."""
    kinds = {"csv": write_csv_columns, **({"parquet": write_parquet_columns} if can_write_parquet() else {})}
    return {
        f"{name}.{kind}": partial(_write_table, columns=columns, make=make)
        for name, columns in tables.items() for kind, make in kinds.items()
    }  # fmt: skip


def _write_table(path: Path, columns: Columns, make: Callable[[Columns], bytes]) -> None:
    write_whole(path, make(columns))


def write_csv_columns(columns: Columns) -> bytes:
    """CSV with all digits; not measured is empty. Texts as in `distprof.render.terminal.nsys_tables.write_csv`."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(map(clean_cell, columns))
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_write_cell(cell) for cell in row])
    return file.getvalue().encode("utf-8", "backslashreplace")


def _write_cell(cell: str | float | int | None) -> str:
    if cell is None:
        return ""
    return clean_cell(cell) if isinstance(cell, str) else repr(cell)


def can_write_parquet() -> bool:
    """Whether the library for Parquet is installed."""
    return importlib.util.find_spec("pyarrow") is not None


def write_parquet_columns(columns: Columns) -> bytes:
    """Parquet with the same heads; not measured is null, also in columns where nothing was measured."""
    import pyarrow
    import pyarrow.parquet

    kinds = {head: pyarrow.array(list(cells)) for head, cells in columns.items()}
    arrays = {
        head: cells.cast(pyarrow.float64() if head.rpartition("_")[2] in NUMBERS else pyarrow.string())
        if pyarrow.types.is_null(cells.type) else cells
        for head, cells in kinds.items()
    }  # fmt: skip
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.table(arrays), sink)
    return bytes(sink.getvalue())
