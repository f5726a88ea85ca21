"""The rules together: a good job has no findings, findings are in order, and their numbers name their units."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.traces.findings.rules import RULES, check_rules
from distprof.facts.trace_summary import Category, DeviceTime, TraceSummary
from distprof.render.finding_texts import describe_finding
from distprof.report.finding_report import Finding, NotChecked
from tests.analyze.traces.findings.synthetic_summaries import (
    make_copy,
    make_device,
    make_kernel,
    make_range,
    make_rank,
    make_sync,
    make_traced,
)

HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e" + "x" * 100_000


def test_a_good_job_has_no_finding_and_every_rule_was_checked() -> None:
    assert check_rules(make_traced(make_rank(0), make_rank(1))) == ((), ())


def test_names_are_unique_and_findings_bear_them() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)
    for rule in RULES:
        result = rule.check(make_traced(make_bad_rank(0), make_bad_rank(1)))
        assert isinstance(result, Finding), rule.name
        assert result.rule == rule.name and set(result.traits) <= set(rule.traits)
        assert result.ranks and result.ranks_checked == 2
        for name in (*result.by_rank, *result.facts, *(name for figure in result.figures for name in figure.numbers)):
            assert name.endswith(("_ns", "_ratio", "_bytes", "_count", "_factor")), name


def list_numbers(finding: Finding) -> list[float]:
    """Every number that a finding carries."""
    by_rank = [value for values in finding.by_rank.values() for value in values]
    return [*finding.facts.values(), *by_rank, *(n for figure in finding.figures for n in figure.numbers.values())]


def make_bad_rank(rank: int) -> TraceSummary:
    """Everything is wrong with it."""
    layers = [make_range(f"layer_{number}", 1, 1 if number else 4) for number in range(8)]
    return make_rank(
        rank,
        head={"memory_peak_bytes": 79 * 2**30},
        device=make_device(idle_host=40, idle_launch=30, idle_communication=30, communication_busy=30, memory=5),
        kernels=(
            make_kernel(Category.MATMUL, 60, precision="fp32", name="ampere_sgemm_128x64_tn"),
            make_kernel(Category.MATMUL, 12, precision="fp16", name="turing_fp16_s1688gemm_fp16_128x128_tn"),
            make_kernel(Category.REDUCTION, 12, name="void softmax_warp_forward<float, float, float, 10, false>()"),
            make_kernel(Category.ELEMENTWISE, 90, count=10_000, small_count=9_000),
        ),
        copies=(make_copy(5, True),),
        syncs=(make_sync("cudaStreamSynchronize", 20, 60),),
        ranges=(
            *layers,
            make_range("mlp", 50, 60),
            make_range("attention", 100, 10, warmup_count=1, warmup_host_ns=10**9),
        ),
    )


def test_what_costs_time_comes_first_and_the_larger_share_before_the_smaller() -> None:
    found, lacking = check_rules(make_traced(make_bad_rank(0), make_bad_rank(1)))
    assert len(found) == len(RULES) and lacking == ()
    misleading = {rule.name for rule in RULES if not rule.costs_time}
    costly = [finding.share_ratio for finding in found if finding.rule not in misleading]
    assert costly == sorted(costly, reverse=True)
    assert {finding.rule for finding in found[-len(misleading) :]} == misleading


def test_what_touches_less_than_a_hundredth_of_the_step_is_left_out() -> None:
    """Small kernels are many, and the device waits for the host, so their rule speaks: 2 ms of the two steps' 200."""

    def find(small: int) -> list[str]:
        kernels = (
            make_kernel(Category.ELEMENTWISE, small * 0.004, count=small, small_count=small),
            make_kernel(Category.MATMUL, 100, count=100),
        )
        found, _ = check_rules(make_traced(make_rank(kernels=kernels, device=make_device(idle_host=21))))
        return [finding.rule for finding in found if finding.rule != "host_bound"]

    assert find(500) == ["small_elementwise"] and find(499) == []


def test_rules_without_their_data_are_listed_with_the_reason() -> None:
    bare = make_rank(
        device=None, queue=None, kernels=(), copies=(), syncs=(), ranges=(), calls_ns=None, num_steps=0,
        head={"memory_peak_bytes": None},
    )  # fmt: skip
    found, lacking = check_rules(make_traced(bare, make_rank(1, **_bare())))
    assert found == ()
    assert {item.rule for item in lacking} == {rule.name for rule in RULES}


def _bare() -> dict[str, Any]:
    return {
        "device": None, "queue": None, "kernels": (), "copies": (), "syncs": (), "ranges": (), "calls_ns": None,
        "num_steps": 0, "head": {"memory_peak_bytes": None},
    }  # fmt: skip


numbers = st.one_of(st.just(0), st.integers(0, 2**63 - 1), st.integers(0, 10**9))
kernels = st.builds(
    lambda category, count, total, small, precision, name: make_kernel(
        category, 0, count=count, small_count=small, precision=precision, name=name
    ).__class__(
        name=name, category=category, precision=precision, count=count, total_ns=total, min_ns=0, max_ns=total,
        small_count=min(small, count),
    ),
    st.sampled_from(list(Category)), st.integers(0, 10**6), numbers, st.integers(0, 10**6),
    st.sampled_from([None, "fp32", "bf16"]), st.sampled_from(["", HOSTILE, "ampere_sgemm", "sm_90_x"]),
)  # fmt: skip
ranges = st.builds(
    lambda number, host, gpu, count, warm: make_range(
        f"layer_{number}", 0, None, count=count, warmup_count=warm, warmup_host_ns=host
    ).__class__(
        domain="d", name=f"layer_{number}", count=count, host_ns=host if count else 0, host_exclusive_ns=0,
        gpu_ns=gpu, gpu_exclusive_ns=gpu, gpu_communication_ns=gpu, activities=count, open_count=0,
        warmup_count=warm, warmup_host_ns=host,
    ),
    st.integers(0, 12), numbers, st.one_of(st.none(), numbers), st.integers(0, 3), st.integers(0, 3),
)  # fmt: skip
devices = st.builds(
    lambda parts: DeviceTime(
        span_ns=sum(parts[:6]), compute_ns=parts[0], memory_ns=parts[1], idle_communication_ns=parts[2],
        idle_host_ns=parts[3], idle_launch_ns=parts[4], idle_unknown_ns=parts[5], memory_busy_ns=parts[1],
        communication_busy_ns=parts[2],
    ),
    st.lists(numbers, min_size=6, max_size=6),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), devices), st.lists(kernels, max_size=6), st.lists(ranges, max_size=12),
            st.integers(0, 3), st.lists(st.tuples(numbers, st.sampled_from([None, True, False])), max_size=3),
        ),
        min_size=1, max_size=3,
    )
)  # fmt: skip
def test_whatever_the_numbers_shares_are_shares_and_every_rule_answers(facts: list[Any]) -> None:
    items = [
        make_rank(
            rank, device=device, kernels=tuple(own_kernels), ranges=tuple(own_ranges), num_steps=steps,
            copies=tuple(
                structs.replace(make_copy(0, pageable), total_ns=total, size_bytes=total)
                for total, pageable in copies
            ),
            syncs=tuple(structs.replace(make_sync(HOSTILE, 5, 0), total_ns=total) for total, _ in copies),
        )
        for rank, (device, own_kernels, own_ranges, steps, copies) in enumerate(facts)
    ]  # fmt: skip
    found, lacking = check_rules(make_traced(*items))
    assert len(found) + len(lacking) <= len(RULES)
    for finding in found:
        assert 0 <= finding.share_ratio <= 1
        text = describe_finding(finding)
        assert all(len(line.what) + len(line.value) + len(line.where) < 1_000 for line in text.evidence)
        assert len(text.title) < 500 and len(text.consequence) < 500 and text.remedy
        assert all(math.isfinite(number) for number in list_numbers(finding)) and "n/a" not in text.title


def test_what_is_not_found_has_no_finding_by_accident() -> None:
    """The checks tell 'nothing to say' from 'not checked'."""
    quiet = make_traced(make_rank(0), make_rank(1))
    assert not any(isinstance(rule.check(quiet), (Finding, NotChecked)) for rule in RULES)
