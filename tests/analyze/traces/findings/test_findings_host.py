"""Rules about copies, synchronising calls and memory. Two steps of 100 ms unless said otherwise."""

from __future__ import annotations

import pytest
from msgspec import structs

from distprof.analyze.traces.findings.host import check_copies_in_step, check_memory_limit, check_sync_in_step
from distprof.facts.run import DeviceSnapshot, Run
from distprof.facts.trace_summary import CopyTotal
from distprof.render.finding_texts import describe_finding as word
from tests.analyze.traces.findings.synthetic_summaries import (
    GIB,
    find,
    find_nothing,
    find_why,
    make_copy,
    make_device,
    make_rank,
    make_sync,
    show_evidence,
)
from tests.factories import USUAL_NS, make_run

NO_DEVICE, NO_STEPS = "no device activity was traced", "no steps are known"
PAGEABLE = make_copy(4, True)


def test_copies_keep_pageable_ones_apart() -> None:
    device = make_device(memory=3, memory_busy=6)
    copies = (
        make_copy(4, True, count=8, size_bytes=4 * 2**20),
        make_copy(2, False),
        make_copy(50, None, direction="device to host"),
    )
    finding = find(check_copies_in_step, make_rank(copies=copies, device=device))
    assert word(finding).title == "Copies from the host take 3.0 % of the step, 2.0 % from pageable memory"
    assert finding.share_ratio == pytest.approx(0.03)
    assert show_evidence(finding) == [
        ("host to device, of the step", "3.0 %", "rank 0"),
        ("from pageable memory", "4 copies per step, 2.0 MiB, 2.0 ms", "rank 0"),
        ("from pinned memory", "2 copies per step, 512.0 KiB, 1.0 ms", "rank 0"),
        ("copies of any kind while nothing computes", "1.5 % of the step", "rank 0"),
    ]
    assert "whatever non_blocking says" in word(finding).consequence


def test_pinned_copies_are_not_called_pageable_and_unknown_ones_are_said_to_be() -> None:
    pinned = find(check_copies_in_step, make_rank(copies=(make_copy(4, False, size_bytes=None),)))
    assert "pageable" not in word(pinned).title + word(pinned).consequence
    assert show_evidence(pinned)[1] == ("from pinned memory", "2 copies per step, 2.0 ms", "rank 0")
    unknown = find(check_copies_in_step, make_rank(copies=(make_copy(4, None),)))
    assert show_evidence(unknown)[1][0] == "from memory of unknown kind"


def test_pinned_memory_is_no_remedy_where_the_memory_is_pinned() -> None:
    def advise(*copies: CopyTotal) -> str:
        return word(find(check_copies_in_step, make_rank(copies=copies))).remedy

    assert advise(make_copy(4, False)).startswith("The memory is pinned already")
    assert advise(make_copy(40, False), make_copy(1.9, True)).startswith("The memory is pinned already")
    assert advise(make_copy(40, False), make_copy(2, True)).startswith("Pinned memory")  # 1 % of the step
    assert advise(make_copy(1, False), make_copy(1.1, None)).startswith("Pinned memory")
    assert advise(make_copy(4, False), make_copy(90, True, direction="device to host")).startswith("The memory is")
    both = find(check_copies_in_step, make_rank(0, copies=(make_copy(9, False),)), make_rank(1, copies=(PAGEABLE,)))
    assert word(both).remedy.startswith("Pinned memory")


def test_copies_are_silent_below_a_hundredth_and_without_steps() -> None:
    assert find(check_copies_in_step, make_rank(copies=(make_copy(2, True),))).share_ratio == pytest.approx(0.01)
    assert find_nothing(check_copies_in_step, make_rank(copies=(make_copy(1.99, True),)))
    copies = (make_copy(100, True),)
    assert find_why(check_copies_in_step, make_rank(copies=copies, num_steps=0)) == NO_STEPS
    assert find_why(check_copies_in_step, make_rank(copies=copies, device=None)) == NO_DEVICE


def test_copies_that_run_on_behind_their_steps_are_no_share_of_them() -> None:
    why = find_why(check_copies_in_step, make_rank(0), make_rank(1, copies=(make_copy(200.1, True),)))
    assert why == "copies on rank 1 take longer than the steps that issued them"  # of 200 ms
    assert find(check_copies_in_step, make_rank(copies=(make_copy(200, True),))).share_ratio == 1


def test_syncs_are_ranked_by_what_the_device_waits_for_the_host() -> None:
    syncs = (make_sync("cudaStreamSynchronize", 10, 90), make_sync("cudaDeviceSynchronize", 2, 20))
    finding = find(check_sync_in_step, make_rank(syncs=syncs))
    assert (
        word(finding).title == "The host waits for the device in 6 calls per step, 55.0 % of its time"
    )  # 110 of 200 ms
    assert finding.share_ratio == pytest.approx(15 / 200)  # idle, host-bound
    assert "The device waited for the host 7.5 % of the step" in word(finding).consequence
    assert show_evidence(finding)[1:] == [
        ("cudaStreamSynchronize", "5 per step, 45.0 ms", "rank 0"),
        ("cudaDeviceSynchronize", "1 per step, 10.0 ms", "rank 0"),
    ]


def test_syncs_are_silent_where_rare_or_short_and_where_nobody_can_tell() -> None:
    assert find_nothing(check_sync_in_step, make_rank(syncs=(make_sync("cudaDeviceSynchronize", 1, 190),)))
    assert find_nothing(check_sync_in_step, make_rank(syncs=(make_sync("cudaStreamSynchronize", 100, 9.99),)))
    assert (
        find(check_sync_in_step, make_rank(syncs=(make_sync("cudaStreamSynchronize", 2, 10),))).rule == "sync_in_step"
    )
    often = (make_sync("cudaStreamSynchronize", 100, 100),)
    assert find_why(check_sync_in_step, make_rank(syncs=often, num_steps=0)) == NO_STEPS
    assert "no calls" in find_why(check_sync_in_step, make_rank(syncs=(), calls_ns=None))


def test_calls_that_wait_on_behind_their_steps_are_no_share_of_them() -> None:
    long = (make_sync("cudaStreamSynchronize", 10, 200.1),)  # of 200 ms
    why = find_why(check_sync_in_step, make_rank(0), make_rank(1, syncs=long))
    assert why == "calls that wait, on rank 1, take longer than the steps"


def test_syncs_without_device_activity_say_that_their_cost_is_unknown() -> None:
    finding = find(check_sync_in_step, make_rank(syncs=(make_sync("cudaStreamSynchronize", 10, 90),), device=None))
    assert finding.share_ratio == pytest.approx(0.45)
    assert "What that costs is not known" in word(finding).consequence


def test_memory_near_its_end_is_said_with_the_ranks() -> None:
    full = {"memory_peak_bytes": 76 * GIB}
    finding = find(check_memory_limit, make_rank(0), make_rank(1, head=full), make_rank(2, head=full))
    assert word(finding).title == "Memory is nearly full: 95.0 % of 80.0 GiB was in use on rank 1"
    assert show_evidence(finding) == [("most in use, of the device (76.0 GiB on rank 1)", "95.0 %", "ranks 1-2")]
    assert finding.share_ratio == 0


def test_memory_is_silent_below_nine_tenths_and_without_a_size() -> None:
    assert find_nothing(check_memory_limit, make_rank(head={"memory_peak_bytes": int(71.9 * GIB)}))
    assert find(check_memory_limit, make_rank(head={"memory_peak_bytes": 72 * GIB})).rule == "memory_limit"
    for name in ("memory_peak_bytes", "device_memory_bytes"):
        assert "no rank has both" in find_why(check_memory_limit, make_rank(head={name: None}))


def test_what_a_rank_said_itself_goes_before_its_trace() -> None:
    look = DeviceSnapshot(name="GPU", memory_total_bytes=10 * GIB)
    live: Run = make_run(
        num_ranks=1, num_steps=3, device_ns=USUAL_NS, infos={0: {"snapshot": look}},
        columns={"memory_peak_bytes": [[8 * GIB, 9.5 * GIB, 9.9 * GIB]], "window": [[0, 0, 1]]},
    )  # fmt: skip
    assert "95.0 % of 10.0 GiB" in word(find(check_memory_limit, make_rank(), run=live)).title
    on_cpu = structs.replace(live, ranks=tuple(structs.replace(info, device="cpu") for info in live.ranks))
    assert find_nothing(check_memory_limit, make_rank(), run=on_cpu)
