"""Exports of nsys with several processes: which of them are ranks, and what belongs to which."""

from __future__ import annotations

from pathlib import Path

from distprof.facts.trace import UNKNOWN
from distprof.traces.nsys.read_nsys import read_nsys
from tests.nsys_file import (
    MS,
    PIDS,
    EventType,
    SyntheticExport,
    make_training_export,
)  # fmt: skip
from tests.traces.test_nsys_import import list_activities, list_calls, list_ranges


def test_correlations_count_in_their_process_only(tmp_path: Path) -> None:
    export = SyntheticExport()
    for pid, at_ns in ((10, 1000), (11, 501_000)):
        for number in range(3):
            export.launch(pid, f"kernel_{number}", at_ns + 10_000 * number, at_ns + 90_000 + number, at_ns + 99_000)
    export.add_kernel(11, "lonely", 1, 2, correlation=None)
    export.add_kernel(11, "lost", 3, 4, correlation=77)
    for trace, at_ns in zip(read_nsys(export.write(tmp_path / "x.sqlite")), (1000, 501_000), strict=True):
        launched = {name: called for name, _, _, called in list_activities(trace)}
        assert launched == {f"kernel_{number}": at_ns + 10_000 * number for number in range(3)} | (
            {"lonely": UNKNOWN, "lost": UNKNOWN} if at_ns > 1000 else {}
        )


def test_domains_are_numbered_by_every_process_for_itself(tmp_path: Path) -> None:
    export = SyntheticExport()
    export.add_range(10, "a", 1, 2, domain="one")
    export.add_range(10, "b", 3, 4, domain="two")
    export.add_range(11, "a", 1, 2, domain="two")
    export.add_range(11, "c", 5, 6)
    strange = {"eventType": EventType.PUSH_POP.value, "globalTid": 11 << 24 | 11, "domainId": 9}
    export.add("NVTX_EVENTS", start=7, end=8, text="d", **strange)
    first, second, third = read_nsys(export.write(tmp_path / "x.sqlite"))
    assert list_ranges(first) == [("", "d", 7, 8)]  # of another machine, by its number
    assert list_ranges(second) == [("one", "a", 1, 2), ("two", "b", 3, 4)]
    assert list_ranges(third) == [("two", "a", 1, 2), ("", "c", 5, 6)]


def test_ranks_without_marks_are_counted_by_process_number(tmp_path: Path) -> None:
    path = make_training_export(num_ranks=3, marks=False).write(tmp_path / "x.sqlite")
    heads = [trace.head for trace in read_nsys(path)]
    assert [(head.rank, head.pid, head.world_size) for head in heads] == [
        (rank, PIDS[rank], 3) for rank in range(3)
    ]  # fmt: skip
    assert {head.rank_source for head in heads} == {"process order"}


def test_marks_win_over_process_order_and_the_unmarked_are_no_ranks(tmp_path: Path) -> None:
    export = SyntheticExport(host="")
    for pid, rank in ((10, 1), (11, 0)):
        export.name_rank(pid, rank=rank, world_size=4, host="nodeß 7")
        export.add_range(pid, "step", 1, 2)
    export.add_range(12, "a loader's", 1, 2)
    export.add_range(11, "rank=3 world=4 host=x pid=11", 0, None, event=EventType.MARK, domain="someone else's")
    path = export.write(tmp_path / "x.sqlite")
    heads = [trace.head for trace in read_nsys(path)]
    assert [(head.pid, head.rank, head.world_size, head.host) for head in heads] == [
        (11, 0, 4, "nodeß 7"), (10, 1, 4, "nodeß 7")
    ]  # fmt: skip
    assert heads[0].notes == ("processes without distprof's mark, which others have, are not ranks (12)",)
    assert [(trace.head.pid, trace.head.rank) for trace in read_nsys(path, all_processes=True)] == [
        (11, 0), (10, 1), (12, None)
    ]  # fmt: skip


def test_all_processes_are_there_when_asked_for(tmp_path: Path) -> None:
    traces = read_nsys(make_training_export().write(tmp_path / "x.sqlite"), all_processes=True)
    assert [(trace.head.pid, trace.head.rank) for trace in traces] == [(4101, 0), (4102, 1), (4000, None)]
    assert list_calls(traces[2], traces[2].os_calls) == [("poll", 1 * MS, 2 * MS)]


def test_a_device_is_found_through_the_process_own_number_for_it(tmp_path: Path) -> None:
    export = SyntheticExport()
    for device, name in enumerate(("first", "second")):
        export.add_gpu(device, name=name, memory_bytes=2**30, capability=(8, device))
    for pid, gpu in ((10, 1), (11, 0)):
        export.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=pid)
        export.launch(pid, "kernel", 0, 1, 2, device=0)
    heads = [trace.head for trace in read_nsys(export.write(tmp_path / "x.sqlite"))]
    assert [(head.device_name, head.compute_capability) for head in heads] == [("second", (8, 1)), ("first", (8, 0))]
