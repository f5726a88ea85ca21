"""The table of foretold and measured steps, from simulated jobs instead of real ones."""

from __future__ import annotations

from benchmarks.buckets import list_table, measure
from tests.analyze.predict.test_forecasts import make_job, run_job

SIZES_MB = (5.0, 10.0, 100.0)


def test_a_job_foretells_the_others() -> None:
    jobs = [measure(run_job(make_job(size_mb), size_mb), size_mb, SIZES_MB) for size_mb in SIZES_MB]
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in list_table(jobs))
    able = ["foretold from 5", "transfers of 5, own computing"]  # the others' buckets are too much alike, or too few
    assert heads == ["`bucket_mb`", "buckets", "computing", "measured", *able]
    assert [row[:2] for row in rows] == [["5", "17"], ["10", "9"], ["100", "1"]]
    assert rows[0][4] == "(recorded)"
    errors = [abs(float(row[column].split()[-1].strip("(%)"))) for row in rows[1:] for column in (4, 5)]
    assert max(errors) < 2 and len({*errors}) > 1
