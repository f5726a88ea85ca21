"""Activities and calls projected onto ranges: by hand, against total times, and with planted faults."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from distprof.errors import DataError
from distprof.facts.trace import ActivityKind, RangeStyle
from distprof.traces.reduce import range_contents as held
from distprof.traces.reduce.device_work import examine_device
from distprof.traces.reduce.ranges import total_ranges
from distprof.traces.tables import projection
from distprof.traces.tables.projection import DEFAULT_DOMAIN, HEADS, LOST, NO_DOMAIN, OUTSIDE, PROJECTIONS, project
from distprof.traces.tables.range_tables import sum_gpu_projection, sum_range_kernels
from distprof.traces.tables.six_tables import Cells, Table
from tests.traces.reduce.synthetic_traces import MAIN, SyntheticTrace
from tests.traces.reduce.test_ranges import OTHER, made_traces, make_example

Key = tuple[str, str, str, str]


def read_rows(table: Table) -> dict[Key, Cells]:
    """Rows by domain, range, type and name, with the cells filled in that are shown only where they change."""
    rows: dict[Key, Cells] = {}
    head = ["", "", ""]
    for cells in table.rows:
        if cells[1]:
            head[:2] = [str(cells[0]), str(cells[1])]
        head[2] = str(cells[2]) or head[2]
        rows[head[0], head[1], head[2], str(cells[-1])] = cells[3:-1]
    return rows


def test_a_projection_by_hand() -> None:
    """The layer: two instances, 12-40 and 50-90 on the host; a graph's two kernels belong to the launch at 51."""
    table = project([make_example().build()], other_threads=False)
    rows = read_rows(table)
    assert {len(cells) for cells in table.rows} == {len(HEADS)}
    assert rows[DEFAULT_DOMAIN, "layer", "Range", "layer"] == (100.0, 70, 2, 35.0, 30, 40)
    gpu = (DEFAULT_DOMAIN, "layer", "GPU activities")
    assert rows[*gpu, "matmul"] == (64.3, 30 + 5 + 10, 3, 15.0, 5, 30)
    assert rows[*gpu, "add"] == (35.7, 10 + 15, 2, 12.5, 10, 15)
    assert rows[DEFAULT_DOMAIN, "layer", "API calls", "cudaLaunchKernel"] == (75.0, 3, 3, 1.0, 1, 1)
    assert rows[DEFAULT_DOMAIN, "layer", "API calls", "cudaGraphLaunch"] == (25.0, 1, 1, 1.0, 1, 1)
    assert rows["NCCL", "reduce", "GPU activities", "nccl"] == (100.0, 30, 1, 30.0, 30, 30)
    assert rows[DEFAULT_DOMAIN, "open", "never closed", "open"] == (None, None, 1, None, None, None)
    assert rows[NO_DOMAIN, OUTSIDE, "GPU activities", "late"] == (100.0, 10, 1, 10.0, 10, 10)
    assert rows[NO_DOMAIN, LOST, "GPU activities", "lost"] == (100.0, 100, 1, 100.0, 100, 100)
    assert (DEFAULT_DOMAIN, "step", "GPU activities", "nccl") not in rows


def test_the_head_of_a_block_stands_on_its_first_row() -> None:
    table = project([make_example().build()], other_threads=False)
    heads = [cells[:3] for cells in table.rows[:8]]
    assert heads[:2] == [(DEFAULT_DOMAIN, "step", "Range"), ("", "", "GPU activities")]
    assert heads[2] == ("", "", "")
    assert [cells[1] for cells in table.rows if cells[1]] == ["step", "layer", "norm", "open", "reduce", OUTSIDE, LOST]


def test_exclusive_leaves_nested_ranges_out() -> None:
    rows = read_rows(project([make_example().build()], exclusive=True, other_threads=False))
    assert rows[DEFAULT_DOMAIN, "step", "Range", "step"] == (100.0, 30, 1, 30.0, 30, 30)
    assert [key[-1] for key in rows if key[1:3] == ("step", "GPU activities")] == ["copy"]
    assert rows[DEFAULT_DOMAIN, "layer", "GPU activities", "matmul"] == (61.5, 30 + 10, 2, 20.0, 10, 30)
    assert rows[DEFAULT_DOMAIN, "norm", "GPU activities", "matmul"] == (100.0, 5, 1, 5.0, 5, 5)


def test_what_two_nested_ranges_of_one_name_hold_counts_once() -> None:
    made = SyntheticTrace()
    made.range("again", 0, 100)
    made.range("again", 10, 90)
    made.launch("kernel", 50, 60, 70)
    (kernel,) = [cells for key, cells in read_rows(project([made.build()])).items() if key[2] == "GPU activities"]
    assert kernel[1:3] == (10, 1)
    assert [row[4:7] for row in sum_range_kernels([made.build()]).rows] == [(2, 1, 20)]  # as nsys counts


def test_traces_are_added_up_and_warmup_is_left_out() -> None:
    made = SyntheticTrace()
    for begin_ns in (0, 1000, 2000):
        made.range("step", begin_ns, begin_ns + 100)
        call = made.call("cudaLaunchKernel_v7000", begin_ns + 10, begin_ns + 15)
        made.activity("kernel", begin_ns + 20, begin_ns + 50, call=call)
    trace, window = made.build(), np.array([[1000, 1100], [2000, 2100]])
    rows = read_rows(project([trace, trace], windows=[window, window[1:]]))
    assert list(rows) == [
        (DEFAULT_DOMAIN, "step", kind, name)
        for kind, name in (("Range", "step"), ("GPU activities", "kernel"), ("API calls", "cudaLaunchKernel"))
    ]
    assert [cells[1:3] for cells in rows.values()] == [(300, 3), (90, 3), (15, 3)]
    assert sum_gpu_projection([trace, trace], windows=[window, window[1:]]).rows[0][2:5] == (90, 300, 3)
    assert sum_range_kernels([trace, trace], windows=[window, window[1:]]).rows[0][4:7] == (3, 3, 90)
    assert all(make([trace]).rows for make in PROJECTIONS.values())
    assert not any(make([]).rows for make in PROJECTIONS.values())


def test_the_longest_ranges_are_shown_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "MAX_SHOWN", 10)
    made = SyntheticTrace()
    for place in range(30):
        made.range(f"r{place}", 100 * place, 100 * place + place)
    table = project([made.build()])
    assert [cells[1] for cells in table.rows[:-1]] == [f"r{place}" for place in range(29, 19, -1)]
    assert table.rows[-1][1] == "20 more ranges, not shown"


def test_pairs_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ranges around a thousand launches: the number of pairs is known before they are built."""
    made = SyntheticTrace()
    for place in range(100):
        made.range(f"r{place}", place, 10_000 - place)
        made.launch("kernel", 1000 + place, 20_000 + place, 20_001 + place)
    trace = made.build()
    whole = project([trace])
    monkeypatch.setattr(held, "PAIRS_AT_ONCE", 700)
    assert project([trace]) == whole
    monkeypatch.setattr(held, "MAX_PAIRS", 9_999)
    for make in PROJECTIONS.values():
        with pytest.raises(DataError, match="ranges contain 10000 calls"):
            make([trace])


@given(made_traces())
def test_the_projection_agrees_with_the_totals(made: SyntheticTrace) -> None:
    """On one stream, the union of a range's activities is their sum."""
    trace = made.build()
    totals = {total.name: total for total in total_ranges(examine_device(trace), window=None)}
    for exclusive in (False, True):
        found: dict[tuple[str, str], int] = {}
        for (domain, name, kind, _), cells in read_rows(project([trace], exclusive=exclusive)).items():
            if domain != NO_DOMAIN and cells[1] is not None:
                found[name, kind] = found.get((name, kind), 0) + int(str(cells[1]))
        for name, total in totals.items():
            gpu_ns = total.gpu_exclusive_ns if exclusive else total.gpu_ns
            assert found.get((name, "GPU activities"), 0) == (gpu_ns or 0)
            assert found.get((name, "Range"), 0) == (total.host_exclusive_ns if exclusive else total.host_ns)


def test_a_projected_range_lasts_from_its_first_activity_to_its_last() -> None:
    """By hand, as in nsys: gaps count, a graph traced as a whole does not, levels and children do."""
    made = make_example()
    made.activity("whole graph", 500, 900, call=made.call("cudaGraphLaunch", 55, 56), kind=ActivityKind.GRAPH)
    rows = {cells[0]: cells[1:] for cells in sum_gpu_projection([made.build()]).rows}
    # style, projected, open, instances, avg, median, min, max, deviation, calls, a piece, level, children
    assert rows["layer"] == ("PushPop", 90, 70, 2, 45.0, 45.0, 30, 60, 21.2, 4, 2.0, 1.0, 0.5)
    assert rows["step"] == ("PushPop", 110, 100, 1, 110.0, 110.0, 110, 110, 0.0, 5, 5.0, 0.0, 3.0)
    assert rows["norm"] == ("PushPop", 5, 10, 1, 5.0, 5.0, 5, 5, 0.0, 1, 1.0, 2.0, 0.0)
    assert rows["NCCL:reduce"][1] == 30
    # never closed: to where the last range of the file ends or begins, at 100; the call at 99 lies in it whole
    assert rows["open"] == ("PushPop", 10, 5, 1, 10.0, 10.0, 10, 10, 0.0, 1, 1.0, 1.0, 0.0)


def test_kernels_stand_under_every_range_around_them() -> None:
    rows = sum_range_kernels([make_example().build()]).rows
    assert rows[0] == (None, None, None, None, 0, 1, 100, 100.0, 100.0, 100, 100, 0.0, "lost")
    assert rows[1] == (None, None, MAIN, MAIN, 0, 1, 10, 10.0, 10.0, 10, 10, 0.0, "late")
    assert ("NCCL:reduce", "PushPop", MAIN, OTHER, 1, 1, 30, 30.0, 30.0, 30, 30, 0.0, "nccl") in rows
    assert ("layer", "PushPop", MAIN, MAIN, 2, 3, 45, 15.0, 10.0, 5, 30, 13.2, "matmul") in rows


def test_start_end_ranges_closed_elsewhere_hold_nothing() -> None:
    """The fault: another thread takes over a request and closes it; calls made meanwhile belong to nobody."""
    made = SyntheticTrace()
    made.range("request", 0, 100, style=RangeStyle.START_END, end_thread=OTHER)
    made.range("kept", 0, 100, style=RangeStyle.START_END)
    made.launch("kernel", 10, 20, 30)
    trace = made.build()
    assert [row[:2] for row in sum_gpu_projection([trace]).rows] == [("kept", "StartEnd")]
    assert [row[0] for row in sum_range_kernels([trace]).rows] == ["kept"]
    rows = read_rows(project([trace]))
    assert (DEFAULT_DOMAIN, "kept", "GPU activities", "kernel") in rows
    assert (DEFAULT_DOMAIN, "request", "GPU activities", "kernel") not in rows


def test_hostile_names_pass_through() -> None:
    """Here names are data; the renderers clean them."""
    made = SyntheticTrace()
    made.range("</script>\x1b[31m", 0, 10, domain='x"; drop table StringIds; --')
    made.launch("k" * 100_000, 1, 2, 3)
    rows = read_rows(project([made.build()]))
    assert ('x"; drop table StringIds; --', "</script>\x1b[31m", "GPU activities", "k" * 100_000) in rows


def test_ranges_that_touch_do_not_hide_the_one_around_them() -> None:
    """The fault: layers without gaps; each child must find its parent however many came before."""
    made = SyntheticTrace()
    made.range("step", 0, 1000)
    for place in range(100):
        made.range("layer", 10 * place, 10 * place + 10)
        made.launch("kernel", 10 * place + 1, 10 * place + 5, 10 * place + 9)
    rows = {cells[0]: cells for cells in sum_gpu_projection([made.build()]).rows}
    assert [rows[name][12:] for name in ("step", "layer")] == [(0.0, 100.0), (1.0, 0.0)]


def test_start_end_ranges_that_overlap_in_a_chain_do_not_hide_the_one_around_them() -> None:
    made = SyntheticTrace()
    made.range("step", 0, 10_000)
    for place in range(300):
        made.range("request", 20 * place, 20 * place + 30, style=RangeStyle.START_END)
        made.launch("kernel", 20 * place + 25, 20_000, 20_001)
    (step, _) = sorted(
        (cells for cells in sum_gpu_projection([made.build()]).rows), key=lambda cells: cells[1] != "PushPop"
    )
    assert (step[0], step[12:]) == ("step", (0.0, 300.0))
