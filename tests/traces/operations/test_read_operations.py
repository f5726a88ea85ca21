"""Tables of operations: both layouts, and tables that nobody should trust."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulate.pipeline_job import PipelineJob, make_operations
from distprof.errors import EXIT_PARTIAL, DataError, TableError
from distprof.facts.operations import KINDS, Operations
from distprof.traces.operations.read_operations import MAX_LINE_BYTES, is_operations, read_operations

HEADS = "dp,pp,step,kind,start_s,duration_s,number,chunk,micro_batch,rank"
ROW = "0,0,3,forward-compute,1.5,0.25,0,0,0,0"


def write(path: Path, *rows: str, heads: str = HEADS) -> Path:
    path.write_text("\n".join([heads, *rows]) + "\n", encoding="utf-8")
    return path


def write_table(path: Path, operations: Operations) -> Path:
    rows = (
        ",".join(
            map(str, (o.replica, o.stage, o.step, KINDS[int(o.kind)], o.start_ns / 1e9, o.duration_ns / 1e9, o.number,
                      0, o.micro_batch, o.rank))
        )
        for o in (operations.choose(np.array(index)) for index in range(len(operations)))
    )  # fmt: skip
    return write(path, *rows)


def test_csv_says_what_was_written(tmp_path: Path) -> None:
    operations = make_operations(PipelineJob(steps=2, stages=2))
    found = read_operations(write_table(tmp_path / "x.csv", operations))
    for field in Operations.__struct_fields__:
        wanted = getattr(operations, field)
        assert np.allclose(getattr(found, field), wanted), field


def test_both_layouts_and_units_say_the_same(tmp_path: Path) -> None:
    first = read_operations(
        write(tmp_path / "a.csv", "0,0,3,gc,1500000000,250", heads="dp,pp,step,kind,start_ns,duration_ns")
    )
    other = read_operations(
        write(tmp_path / "b.csv", "0,0,3,gc,1.5,25e-8,7", heads="dp_rank,stage,step,optype,start_ts,duration,gmc")
    )
    assert [*first.start_ns, *first.duration_ns] == pytest.approx([*other.start_ns, *other.duration_ns])
    assert (first.number.tolist(), first.micro_batch.tolist()) == ([0], [-1])


def test_numbers_follow_the_starts_where_there_are_none(tmp_path: Path) -> None:
    rows = ("0,0,0,gc,3,1", "0,0,0,gc,1,1", "0,0,1,gc,5,1", "0,0,0,optimizer,2,1")
    found = read_operations(write(tmp_path / "x.csv", *rows, heads="dp,pp,step,kind,start_s,duration_s"))
    assert found.number.tolist() == [1, 0, 0, 0]


def test_transfers_without_a_number_beside_numbered_ones_have_no_partner(tmp_path: Path) -> None:
    rows = ("0,0,0,forward-recv,1,1,-1", "0,0,0,forward-recv,2,1,0", "0,0,0,gc,5,1,", "0,0,0,gc,4,1,-1")
    found = read_operations(write(tmp_path / "x.csv", *rows, heads="dp,pp,step,kind,start_s,duration_s,number"))
    assert (found.start_ns / 1e9).tolist() == [2, 5, 4]
    assert found.number.tolist() == [0, 1, 0]


def test_the_ranks_of_a_tensor_parallel_group_are_one(tmp_path: Path) -> None:
    heads = "dp,pp,tp,step,kind,start_s,duration_s"
    rows = ("0,0,0,0,gc,1,1", "0,0,1,0,gc,1.5,1.5")
    found = read_operations(write(tmp_path / "x.csv", *rows, heads=heads))
    assert (found.start_ns.tolist(), found.duration_ns.tolist()) == ([1.5e9], [1.5e9])


HOSTILE = {
    "nan": ("0,0,3,forward-compute,nan,0.25,0,0,0,0", "column start_s, row 2: is empty or not a number"),
    "infinite": ("0,0,3,forward-compute,inf,0.25,0,0,0,0", "column start_s, row 2: inf is more than"),
    "negative": ("0,0,3,forward-compute,1,-0.25,0,0,0,0", "column duration_s, row 2: -0.25 is less than 0"),
    "empty": ("0,0,3,forward-compute,,0.25,0,0,0,0", "column start_s, row 2: is empty"),
    "word": ("0,x,3,forward-compute,1,0.25,0,0,0,0", "column pp, row 2: 'x' is no number"),
    "kind": ("0,0,3,sleep,1,0.25,0,0,0,0", "column kind, row 2: 'sleep' is no kind of operation"),
    "duplicate": (ROW, "column number, row 2: forward-compute 0 of this rank and step is in row 1 already"),
    "fraction": ("0.5,0,3,forward-compute,1,0.25,1,0,0,0", "column dp, row 2: 0.5 is no whole number"),
    "huge": ("70000,0,3,forward-compute,1,0.25,1,0,0,0", "column dp, row 2: 70000 is more than 65536"),
    "below": ("-1,0,3,forward-compute,1,0.25,1,0,0,0", "column dp, row 2: -1 is less than 0"),
    "gap": ("2,0,3,forward-compute,1,0.25,1,0,0,0", "column dp: no row has 1, although 2 occurs"),
    "sparse": ("1,1,4,forward-compute,1,0.25,1,0,0,0", "2 rows are too few for 2 steps"),
    "short": ("0,0,3", "row 2: has 3 cells, not 10"),
    "long number": ("0,0,3,forward-compute,1,0.25,99999999999,0,0,0", "column number, row 2: 1e\\+11 is more than"),
    "quote": ('0,0,3,"forward', "line 3: not CSV"),
    "line": ("0" * MAX_LINE_BYTES, "line 3: longer than"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_cell_that_cannot_be_right_is_named(case: str, tmp_path: Path) -> None:
    row, message = HOSTILE[case]
    with pytest.raises(TableError, match=message) as raised:
        read_operations(write(tmp_path / "x.csv", ROW, row))
    assert raised.value.exit_code == EXIT_PARTIAL
    assert "\n" not in str(raised.value) and str(raised.value).startswith(str(tmp_path / "x.csv"))


@pytest.mark.parametrize(
    ("heads", "message"),
    [
        ("dp,pp,step,kind,start_s", "column duration_ns or duration_s or duration: is missing"),
        ("dp,pp,stage,step,kind,start_s,duration_s", "columns pp and stage: both say the same"),
        ("dp,pp,step,step,kind,start_s,duration_s", "columns step and step: both say the same"),
    ],
)
def test_columns_that_are_missing_or_twice_are_named(heads: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TableError, match=message):
        read_operations(write(tmp_path / "x.csv", heads=heads))


def test_tables_without_rows_and_other_bytes(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="has no rows"):
        read_operations(write(tmp_path / "x.csv"))
    (tmp_path / "y.csv").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(TableError, match="line 1: not text"):
        read_operations(tmp_path / "y.csv")
    assert not is_operations(tmp_path)


def test_a_parquet_file_that_contradicts_itself_does_not_end_the_process(tmp_path: Path) -> None:
    """In a process of its own, which pyarrow would end."""
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {"dp": [0] * 2, "pp": [0, 1], "step": [0] * 2, "kind": ["gc"] * 2, "start_s": [0.0] * 2}
    parquet.write_table(pyarrow.table({**columns, "duration_s": [1.0] * 2}), tmp_path / "x.parquet")
    program = """
import sys
from pathlib import Path
from distprof.errors import DistprofError
from distprof.traces.operations.read_operations import read_operations
path = Path(sys.argv[1])
whole = path.read_bytes()
foot = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
for at in range(foot, foot + 60):
    for bit in (1, 2, 4):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ bit]) + whole[at + 1 :])
        try:
            read_operations(path)
        except DistprofError:
            pass
"""
    command = [sys.executable, "-c", program, str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


class Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("unpickled",))


def test_parquet_of_wrong_types_and_damaged_files_are_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = {"dp": [0], "pp": [0], "step": [0], "kind": ["gc"], "start_s": [0.0], "duration_s": [1.0]}
    path = tmp_path / "x.parquet"
    for name, values, message in (
        ("kind", [7], "column kind: is of type int64, not text"),
        ("start_s", [[1.0]], "column start_s: is of type list"),
        ("start_s", [pickle.dumps(Hostile())], "column start_s: is of type binary, not numbers"),
        ("duration_s", [None], "column duration_s: is of type null, not numbers"),
        ("step", ["0"], "column step: is of type string, not numbers"),
    ):
        parquet.write_table(pyarrow.table({**columns, name: values}), path)
        with pytest.raises(TableError, match=message):
            read_operations(path)
    parquet.write_table(pyarrow.table({**columns, "duration_s": pyarrow.array([None], pyarrow.float64())}), path)
    with pytest.raises(TableError, match="column duration_s, row 1: is empty"):
        read_operations(path)
    parquet.write_table(pyarrow.table({**columns, "kind": pyarrow.array([None], pyarrow.string())}), path)
    with pytest.raises(TableError, match="column kind, row 1: is empty"):
        read_operations(path)
    parquet.write_table(pyarrow.table(columns), path)
    whole = path.read_bytes()
    assert len(read_operations(path)) == 1
    for damaged in (whole[:-5], whole[:4], b"PAR1" + bytes(100) + whole[-8:], whole[:60] + bytes(40) + whole[100:]):
        path.write_bytes(damaged)
        assert is_operations(path)
        with pytest.raises(DataError, match=r"x\.parquet"):
            read_operations(path)
