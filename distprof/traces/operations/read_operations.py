"""Reads a table of operations, Parquet or CSV, without trust.

Every cell is checked. The first one that cannot be right refuses the file, with its column and its row, counted from 1.
Types that could hold code or nest are refused before anything of them is read.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np
import numpy.typing as npt
from msgspec import structs

from distprof.errors import DataError, TableError
from distprof.facts.arrays import BoolArray, FloatArray, IntArray
from distprof.facts.operations import KINDS, Kind, Operations, number_workers
from distprof.storage.remote import Place
from distprof.storage.safe_open import begins_with, open_file
from distprof.traces.operations.columns import FIELDS, LAYOUT, choose_columns

PARQUET_MAGIC = b"PAR1"
MAX_ROWS = 32_000_000
MAX_BYTES = 4 << 30
"""Of a file, and of its columns once they are decompressed."""
MAX_COLUMNS, MAX_LINE_BYTES = 1_000, 1 << 16
BATCH = 1 << 17
MOST_INT32 = 1 << 31
"""Columns of smaller numbers take half the memory while a table is read."""
NO_PYARROW = "a Parquet file needs pyarrow: pip install 'distprof[parquet]', or write the table as CSV"
WHOLE_FIELDS = ("replica", "stage", "rank", "step", "number", "chunk", "micro_batch")
PLACES: Mapping[str, int] = {str(kind): place for place, kind in enumerate(KINDS) if kind is not Kind.OTHER}
Batch = Mapping[str, npt.NDArray[Any]]
"""Columns by their heads. Numbers are float64, NaN: empty."""


def is_operations(path: Place) -> TypeGuard[Path]:
    """Whether it is a file that claims to be a table: Parquet by its content, or named like a table."""
    with contextlib.suppress(OSError):  # whoever reads it says so
        return (
            isinstance(path, Path)
            and path.is_file()
            and (path.suffix in (".csv", ".parquet") or begins_with(path, PARQUET_MAGIC))
        )
    return False


def read_operations(path: Path) -> Operations:
    """The operations of a table, in its order.

    Raises:
        TableError: A column or a cell cannot be right, or there is too much.
        DataError: The file cannot be read at all.
    """
    try:
        with open_file(path, max_bytes=MAX_BYTES) as file:
            batches = _read_parquet(path, file) if begins_with(path, PARQUET_MAGIC) else _read_csv(path, file)
            columns = _collect(path, batches)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    return _make_operations(path, columns)


def _collect(path: Path, batches: Iterator[Batch]) -> dict[str, npt.NDArray[Any]]:
    """Checks one batch after the other and puts them together."""
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    row = 0
    for batch in batches:
        count = len(next(iter(batch.values())))
        if row + count > MAX_ROWS:
            raise TableError(f"{path}: more than the limit of {MAX_ROWS:,} rows: pass fewer steps")
        for name, values in batch.items():
            parts.setdefault(FIELDS[name], []).append(_check(path, name, values, row))
        row += count
    if not row:
        raise TableError(f"{path}: the table has no rows")
    return {field: np.concatenate(found) for field, found in parts.items()}


def _check(path: Path, name: str, values: npt.NDArray[Any], row: int) -> npt.NDArray[Any]:
    """The column in the unit and the type in memory."""
    layout = LAYOUT[FIELDS[name]]
    if FIELDS[name] == "kind":
        return values.astype(np.int8)
    if not layout.required and layout.least < 0:
        values = np.where(np.isnan(values), -1.0, values)
    with np.errstate(invalid="ignore", over="ignore"):
        values = values * layout.names[name]
        wrong = ~((values >= layout.least) & (values <= layout.most))
        wrong |= layout.whole & (values != np.floor(values))
    if wrong.any():
        at = int(wrong.argmax())
        _raise_cell(path, name, row + at, values[at])
    if not layout.whole:
        return values
    return values.astype(np.int32 if np.abs(values).max() < MOST_INT32 else np.int64)


def _raise_cell(path: Path, name: str, row: int, value: float) -> None:
    layout = LAYOUT[FIELDS[name]]
    shown = value / layout.names[name]
    if np.isnan(value):
        reason = "is empty or not a number"
    elif value < layout.least:
        reason = f"{shown:g} is less than {layout.least / layout.names[name]:g}"
    elif value > layout.most:
        reason = f"{shown:g} is more than {layout.most / layout.names[name]:g}"
    else:
        reason = f"{shown:g} is no whole number"
    raise TableError(f"{path}: column {name}, row {row + 1:,}: {reason}")


def _raise_kind(path: Path, name: str, row: int, text: object) -> None:
    shown = "is empty" if text is None or text == "" else f"{str(text)[:40]!r} is no kind of operation"
    raise TableError(f"{path}: column {name}, row {row + 1:,}: {shown}: expected one of {', '.join(PLACES)}")


def _read_parquet(path: Path, file: BinaryIO) -> Iterator[Batch]:
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError(f"{path}: {NO_PYARROW}")
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(
            file, thrift_string_size_limit=16 << 20, thrift_container_size_limit=1 << 20
        )
        names = _check_parquet(path, table, pyarrow.types)
        row = 0
        for batch in table.iter_batches(BATCH, columns=names, use_threads=False):
            yield {name: _take_column(path, name, batch.column(name), row) for name in names}
            row += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError, KeyError) as error:
        said = (str(error).splitlines() or [""])[0][:200]
        raise DataError(f"{path}: not a valid Parquet file ({said}): damaged or truncated") from None


def _check_parquet(path: Path, table: Any, types: Any) -> list[str]:
    """The columns to read, none of which has a type that is not wanted."""
    metadata, schema = table.metadata, table.schema_arrow
    if metadata.num_columns > MAX_COLUMNS or metadata.num_rows > MAX_ROWS:
        raise TableError(f"{path}: more than the limit of {MAX_ROWS:,} rows or {MAX_COLUMNS:,} columns")
    names = choose_columns(path, schema.names)
    for name in names:
        kind, wanted = schema.field(name).type, "text" if FIELDS[name] == "kind" else "numbers"
        inner = kind.value_type if types.is_dictionary(kind) else kind
        text = types.is_string(inner) or types.is_large_string(inner)
        if not (text if wanted == "text" else types.is_integer(kind) or types.is_floating(kind)):
            raise TableError(f"{path}: column {name}: is of type {str(kind)[:60]}, not {wanted}")
    # What a file says of single columns is not asked for: pyarrow ends the process if that contradicts itself.
    if sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)) > MAX_BYTES:
        raise TableError(f"{path}: more than the limit of {MAX_BYTES:,} bytes once decompressed")
    return names


def _take_column(path: Path, name: str, column: Any, row: int) -> npt.NDArray[Any]:
    if FIELDS[name] != "kind":
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)
    encoded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    at = np.asarray(encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False), dtype=np.int64)
    numbers = np.array([*(PLACES.get(word, -1) for word in words), -1])[at]
    if (numbers < 0).any():
        wrong = int((numbers < 0).argmax())
        _raise_kind(path, name, row + wrong, [*words, None][int(at[wrong])])
    return numbers


def _read_csv(path: Path, file: BinaryIO) -> Iterator[Batch]:
    lines = csv.reader(_read_lines(path, file), strict=True)
    try:
        heads = [head.strip() for head in next(lines, [])]
        names = choose_columns(path, heads)
        at = {name: heads.index(name) for name in names}
        row = 0
        while rows := list(islice(lines, BATCH)):
            for position, cells in enumerate(rows):
                if len(cells) != len(heads):
                    raise TableError(f"{path}: row {row + position + 1:,}: has {len(cells)} cells, not {len(heads)}")
            yield {name: _parse(path, name, [cells[place] for cells in rows], row) for name, place in at.items()}
            row += len(rows)
    except csv.Error as error:
        raise TableError(f"{path}: line {lines.line_num:,}: not CSV ({error})") from None


def _read_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE_BYTES):
        number += 1
        if len(line) == MAX_LINE_BYTES:
            raise TableError(f"{path}: line {number:,}: longer than {MAX_LINE_BYTES:,} bytes")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise TableError(f"{path}: line {number:,}: not text in UTF-8") from None


def _parse(path: Path, name: str, cells: Sequence[str], row: int) -> npt.NDArray[Any]:
    if FIELDS[name] == "kind":
        numbers = np.array([PLACES.get(cell.strip(), -1) for cell in cells])
        if (numbers < 0).any():
            wrong = int((numbers < 0).argmax())
            _raise_kind(path, name, row + wrong, cells[wrong].strip())
        return numbers
    try:
        return np.array([cell or "nan" for cell in cells], dtype=np.float64)
    except ValueError:
        return np.array([_parse_cell(path, name, cell, row + at) for at, cell in enumerate(cells)])


def _parse_cell(path: Path, name: str, cell: str, row: int) -> float:
    try:
        return float(cell) if cell.strip() else float("nan")
    except ValueError:
        raise TableError(f"{path}: column {name}, row {row + 1:,}: {cell[:40]!r} is no number") from None


def _make_operations(path: Path, columns: dict[str, npt.NDArray[Any]]) -> Operations:
    """The operations; the ranks of a tensor-parallel group become one.

    Raises:
        TableError: Coordinates have gaps, or an operation occurs twice.
    """
    count = len(columns["kind"])
    tensor = columns.pop("tensor", np.zeros(count, dtype=np.int32))
    for field in ("rank", "chunk", "micro_batch"):
        columns.setdefault(field, np.full(count, -1, dtype=np.int32))
    slot = _number_slots(path, columns, tensor)
    kept = _number(columns, slot)
    _require_once(path, columns, np.where(kept, slot, -1))
    del slot
    operations = Operations(**columns)
    if not kept.all():
        operations, tensor = operations.choose(kept), tensor[kept]
    operations = _fold(operations) if tensor.any() else operations
    wide: dict[str, Any] = {name: np.asarray(getattr(operations, name), dtype=np.int64) for name in WHOLE_FIELDS}
    return structs.replace(operations, **wide)


def _number_slots(path: Path, columns: Mapping[str, npt.NDArray[Any]], tensor: IntArray) -> IntArray:
    """A number for each rank, step and kind.

    Raises:
        TableError: Coordinates have gaps, or there are fewer rows than ranks and steps.
    """
    steps, slot = np.unique(columns["step"], return_inverse=True)
    size = len(steps)
    for head, values in (("dp", columns["replica"]), ("pp", columns["stage"]), ("tp", tensor)):
        there = np.unique(values)
        if there[-1] >= len(there):
            missing = int(np.flatnonzero(there != np.arange(len(there)))[0])
            raise TableError(f"{path}: column {head}: no row has {missing}, although {there[-1]} occurs")
        size *= len(there)
        if size > len(slot):
            raise TableError(
                f"{path}: {len(slot):,} rows are too few for {len(steps):,} steps and the ranks that columns dp, pp "
                "and tp name: in every step each rank has rows"
            )
        slot = slot * len(there) + values
    slots: IntArray = slot * len(KINDS) + columns["kind"]
    return slots


def _number(columns: dict[str, npt.NDArray[Any]], slot: IntArray) -> BoolArray:
    """Numbers operations that have no number, where none of their kind on their rank in their step has one; others are
    transfers without partners beside those that have some, and are not kept."""
    numbers = columns.setdefault("number", np.full(len(slot), -1, dtype=np.int32))
    missing = numbers < 0
    if not missing.any():
        return ~missing
    numbered = np.isin(slot, slot[~missing])
    columns["number"] = np.where(missing, _number_by_start(slot, columns["start_ns"]), numbers)
    return np.asarray(~(missing & numbered))


def _number_by_start(slot: IntArray, start_ns: FloatArray) -> IntArray:
    """Which one of its kind an operation is on its rank in its step, in the order of their starts."""
    order = np.lexsort((start_ns, slot))
    first = np.searchsorted(slot[order], slot[order])
    numbers = np.empty(len(slot), dtype=np.int64)
    numbers[order] = np.arange(len(slot)) - first
    return numbers


def _require_once(path: Path, columns: Mapping[str, npt.NDArray[Any]], slot: IntArray) -> None:
    keys = slot * (int(columns["number"].max()) + 1) + columns["number"]
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero((keys[order[1:]] == keys[order[:-1]]) & (slot[order[1:]] >= 0))
    if len(same):
        first, second = (int(order[same[0] + more]) for more in (0, 1))
        kind = KINDS[int(columns["kind"][second])]
        raise TableError(
            f"{path}: column number, row {second + 1:,}: {kind} {columns['number'][second]} of this rank and step is "
            f"in row {first + 1:,} already"
        )


def _fold(operations: Operations) -> Operations:
    """One operation for those of a tensor-parallel group: its ranks work in step, and the latest of them decides."""
    workers = number_workers(operations) * len(KINDS) + operations.kind
    keys = workers * (int(operations.number.max()) + 1) + operations.number
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    start_ns = np.maximum.reduceat(operations.start_ns[order], starts)
    end_ns = np.maximum.reduceat((operations.start_ns + operations.duration_ns)[order], starts)
    folded = operations.choose(order[starts])
    return structs.replace(folded, start_ns=start_ns, duration_ns=end_ns - start_ns)
