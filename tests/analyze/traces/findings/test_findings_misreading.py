"""Rules about what misleads, and about layers unlike their siblings. Two steps of 100 ms unless said otherwise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from distprof.analyze.traces.findings.misreading import check_host_is_not_gpu, check_warmup_in_statistics
from distprof.analyze.traces.findings.siblings import check_unlike_siblings
from distprof.facts.trace_summary import RangeTotal, TraceSummary
from distprof.render.finding_texts import word_finding as word
from distprof.report.finding_report import Finding
from tests.analyze.traces.findings.synthetic_summaries import (
    find,
    find_nothing,
    find_why,
    make_range,
    make_rank,
    make_traced,
    show_evidence,
)
from tests.factories import MS, make_run

NO_STEPS = "no steps are known"


def test_ranges_that_change_places_are_set_beside_each_other() -> None:
    """Steps of 200 ms on the host, 160 ms of work on the device without collectives."""
    ranges = (make_range("attention", 100, 16), make_range("mlp", 60, 96), make_range("norm", 10, 8))
    finding = find(check_host_is_not_gpu, make_rank(ranges=ranges))
    assert word(finding).title == (
        "Host times and GPU times rank ranges differently: attention is 50.0 % of the step on the host and "
        "10.0 % of GPU work (without collectives), mlp 30.0 % and 60.0 %"
    )
    assert finding.share_ratio == pytest.approx(0.2)  # 20 points apart on the host, 50 on the GPU
    assert show_evidence(finding) == [
        ("attention", "host 50.0 % of the step, GPU 10.0 % of its work", "rank 0"),
        ("mlp", "host 30.0 % of the step, GPU 60.0 % of its work", "rank 0"),
    ]


def test_the_pair_that_is_farthest_apart_comes_first() -> None:
    ranges = (make_range("optimizer", 70, 4), make_range("loss", 40, 24), make_range("layers", 10, 100))
    finding = find(check_host_is_not_gpu, make_rank(ranges=ranges))
    assert "optimizer is 35.0 %" in word(finding).title and "layers 5.0 %" in word(finding).title
    assert [what for what, *_ in show_evidence(finding)] == ["optimizer", "layers", "loss"]


def test_a_range_whose_two_shares_are_alike_is_not_set_beside_another() -> None:
    """11.5 % on the host and 11.7 % on the GPU: its host time misleads nobody. From a fifth apart it is."""
    check, step = check_host_is_not_gpu, make_range("optimizer", 80, 4)
    assert find_nothing(check, make_rank(ranges=(step, make_range("loss", 23, 160 * 0.138 * 0.99))))
    assert find(check, make_rank(ranges=(step, make_range("loss", 23, 160 * 0.138)))).rule == "host_is_not_gpu"


def test_the_data_loader_is_not_expected_on_the_gpu() -> None:
    loader = make_range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 100, 0)
    ranges = (loader, make_range("mlp", 20, 96))
    assert find(check_host_is_not_gpu, make_rank(ranges=ranges)).rule == "host_is_not_gpu"
    known = dataclasses.replace(loader, loads=True)
    assert find_nothing(check_host_is_not_gpu, make_rank(ranges=(known, *ranges[1:])))


def test_shares_that_differ_and_rank_alike_mislead_nobody() -> None:
    check = check_host_is_not_gpu
    assert find_nothing(check, make_rank(ranges=(make_range("forward", 92, 40), make_range("backward", 94, 119))))
    assert find_nothing(check, make_rank(ranges=(make_range("model", 140, 159), make_range("loss", 20, 1))))
    ten_points = (make_range("attention", 40, 16), make_range("mlp", 20, 48))  # 20 and 10 % on the host
    assert find_nothing(check, make_rank(ranges=ten_points))
    more = (make_range("attention", 40.1, 16), make_range("mlp", 20, 48))
    assert find(check, make_rank(ranges=more)).share_ratio == pytest.approx(0.1005)


@pytest.mark.parametrize("name", ["ProfilerStep#*", "train_step", "loop body"])
def test_the_steps_own_range_is_no_part_of_the_step(name: str) -> None:
    """Even where the device did hardly anything for it, and where there is one in every other step only."""
    check, inner = check_host_is_not_gpu, make_range("mlp", 20, 100)
    assert find_nothing(check, make_rank(ranges=(make_range(name, 199, 10), inner)))
    assert find_nothing(check, make_rank(ranges=(make_range(name, 96, 10, count=1), inner)))
    assert find(check, make_rank(ranges=(make_range(name, 94, 10, count=1), inner))).rule == "host_is_not_gpu"


def test_collectives_are_no_work_that_one_could_rank() -> None:
    exchange = make_range("nccl:all_reduce", 1, 150, gpu_communication_ns=149 * MS)
    ranges = (make_range("forward", 100, 20), exchange)
    assert find_nothing(check_host_is_not_gpu, make_rank(ranges=ranges))


def test_a_range_of_collectives_alone_is_said_to_do_no_other_work() -> None:
    """Its GPU time stands under 'ranges', which counts collectives: without the two words that reads as a mistake."""
    exchange = make_range("dispatch", 120, 40, gpu_communication_ns=40 * MS)
    finding = find(check_host_is_not_gpu, make_rank(ranges=(exchange, make_range("mlp", 10, 80))))
    assert (
        "dispatch is 60.0 % of the step on the host and 0 % of GPU work (without collectives), mlp"
        in word(finding).title
    )


def test_shares_are_of_all_ranks_together() -> None:
    ranges = (make_range("attention", 100, 16), make_range("mlp", 20, 96))
    one = find(
        check_host_is_not_gpu,
        make_rank(0, ranges=ranges),
        make_rank(1, ranges=(make_range("attention", 20, 16), make_range("mlp", 20, 96))),
    )
    assert "attention is 30.0 % of the step on the host and 10.0 % of GPU work (without collectives)" in word(one).title
    assert show_evidence(one)[0][2] == "ranks 0-1"


def test_without_device_activity_shares_are_said_to_be_the_hosts() -> None:
    ranges = (make_range("attention", 100, None, domain="own"), make_range("mlp", 40, None))
    finding = find(check_host_is_not_gpu, make_rank(ranges=ranges, device=None), run=_foreign())
    assert (
        word(finding).title == "The times and shares of all 2 ranges are host times only: no device activity was traced"
    )
    assert show_evidence(finding)[0] == (
        "own:attention",
        "100.0 ms on the host, 50.0 % of the steps; GPU not known",
        "rank 0",
    )
    assert "so a GPU was in use" in word(finding).consequence
    blind = find(
        check_host_is_not_gpu, make_rank(ranges=ranges, device=None, calls_ns=None, num_steps=0), run=_foreign()
    )
    assert "so a GPU was in use" not in word(blind).consequence and "of the steps" not in show_evidence(blind)[0][1]


def test_without_a_sign_of_a_gpu_host_times_may_be_all_there_is() -> None:
    ranges = (make_range("attention", 100, None),)
    cpu = {"device_name": None, "backend": "gloo"}
    rank = make_rank(ranges=ranges, device=None, calls_ns=None, head=cpu)
    assert find_why(check_host_is_not_gpu, rank, run=_foreign()) == "no device activity was traced"
    nccl = make_rank(ranges=ranges, device=None, calls_ns=None, head={**cpu, "backend": "nccl"})
    assert find(check_host_is_not_gpu, nccl, run=_foreign()).share_ratio == 1.0


def _foreign():  # type: ignore[no-untyped-def]
    return make_run(num_ranks=1, num_steps=3, infos={0: {"source": "trace", "ended": None}})


def test_a_job_that_says_it_ran_on_the_cpu_has_host_times_only_and_that_is_right() -> None:
    ranges = (make_range("attention", 100, None),)
    assert find_nothing(check_host_is_not_gpu, make_rank(ranges=ranges, device=None, calls_ns=None))


def test_host_shares_are_not_checked_without_ranges_steps_or_launches() -> None:
    check = check_host_is_not_gpu
    assert find_why(check, make_rank(ranges=())) == "no named ranges were traced"
    assert find_why(check, make_rank(num_steps=0)) == NO_STEPS
    assert "is not in the trace" in find_why(check, make_rank(ranges=(make_range("attention", 100, None),)))


def test_warmup_instances_are_told_from_measured_ones() -> None:
    """A step of warm-up of 100 ms, two measured ones: 300 ms. Attention: 30 ms measured, 150 ms in warm-up."""
    ranges = (make_range("attention", 30, 30, warmup_count=1, warmup_host_ns=150 * MS),)
    finding = find(check_warmup_in_statistics, make_rank(ranges=ranges))
    assert (
        word(finding).title
        == "Counting warm-up, attention comes out at 60.0 % of the step instead of 15.0 % (4.0 times)"
    )
    assert finding.share_ratio == pytest.approx(0.45)
    everything = "all 3 instances 180.0 ms, 60.0 % of a step; the 2 measured 30.0 ms, 15.0 %; "
    assert show_evidence(finding) == [("attention", f"{everything}mean 4.0 times that of the measured", "rank 0")]


@pytest.mark.parametrize("warmup", [False, True])
def test_a_range_that_outlasts_the_steps_has_no_share_of_them(warmup: bool) -> None:
    """It began in a step, or before the first, and was closed hours later: it is no share, and no swap with mlp."""
    hours = 10**7
    if warmup:
        late = make_range("forward", 100, 16, warmup_count=1, warmup_host_ns=hours * MS)
    else:
        late = make_range("forward", hours, 16, warmup_count=1, warmup_host_ns=MS)
    assert find_nothing(check_warmup_in_statistics, make_rank(ranges=(late,)))
    assert find_nothing(check_host_is_not_gpu, make_rank(ranges=(late, make_range("mlp", 60, 96))))


def test_a_mean_that_is_off_counts_where_shares_agree() -> None:
    """Warm-up is ten times as long, the step and the range alike: shares agree, means do not."""
    slow = make_run(num_ranks=1, num_steps=3, num_warmup=1, host_ns={"forward": [[1000 * MS, 100 * MS, 100 * MS]]})
    ranges = (make_range("mlp", 50, 50, warmup_count=1, warmup_host_ns=250 * MS),)
    finding = find(check_warmup_in_statistics, make_rank(ranges=ranges), run=slow)
    assert word(finding).title == "Counting warm-up, the mean of mlp comes out at 4.0 times its value"
    assert finding.share_ratio == pytest.approx(0.25 * 0.75)


def test_warmup_like_the_measured_steps_misleads_nobody() -> None:
    check = check_warmup_in_statistics
    like = make_range("mlp", 50, 50, warmup_count=1, warmup_host_ns=25 * MS)
    assert find_nothing(check, make_rank(ranges=(like,)))
    small = make_range("tiny", 2, 2, warmup_count=1, warmup_host_ns=15 * MS)  # 5.7 % of 300 ms instead of 1 %
    assert find_nothing(check, make_rank(ranges=(small,)))
    assert word(
        find(check, make_rank(ranges=(dataclasses.replace(small, warmup_host_ns=16 * MS + 1),)))
    ).title.startswith("Count")
    bit_off = make_range("mlp", 80, 80, warmup_count=1, warmup_host_ns=60 * MS)  # 46.7 % instead of 40 %: 1.17 times
    assert find_nothing(check, make_rank(ranges=(bit_off,)))
    more_off = dataclasses.replace(like, warmup_host_ns=46 * MS)
    assert find(check, make_rank(ranges=(more_off,))).rule == "warmup_in_statistics"
    assert find_why(check, make_rank(num_steps=0)) == NO_STEPS
    assert find_why(check, make_rank(ranges=())) == "no named ranges were traced"


def make_layers(gpu_ms: list[float], template: str = "layer_{}", rank: int = 0, **changes: object) -> TraceSummary:
    ranges = [make_range(template.format(number), 2 * time, 2 * time) for number, time in enumerate(gpu_ms)]
    return make_rank(rank, ranges=tuple(ranges), **changes)


STEADY = [4.0, 4.1, 3.9, 4.0, 4.05, 3.95, 4.0, 4.1]


@pytest.mark.parametrize(
    "template",
    ["layer_{}", "Layer {}", "GPT2Block_{}", "transformer.h.{}.mlp", "nn.Module: Block_{}", "0/layers.{}/x2"],
)
def test_the_odd_layer_is_named(template: str) -> None:
    finding = find(check_unlike_siblings, make_layers([*STEADY, 6.0], template))
    assert word(finding).title == f"{template.format(8)} takes 50.0 % more GPU time than the median of its 9 siblings"
    assert finding.share_ratio == pytest.approx(2 * 2.0 / 200)  # 2 ms more, twice in 200 ms
    family = template.format("#")
    assert show_evidence(finding) == [(
        template.format(8), "6.0 ms of GPU time per instance, median of 9: 4.0 ms (1.5 times)",
        f"rank 0, among {family}",
    )]  # fmt: skip


def test_a_layer_that_takes_less_is_odd_too() -> None:
    assert "layer_8 takes 50.0 % less GPU time" in word(find(check_unlike_siblings, make_layers([*STEADY, 2.0]))).title


def test_a_fifth_is_not_odd_nor_is_what_chance_does() -> None:
    assert find_nothing(check_unlike_siblings, make_layers([*STEADY, 4.8]))
    assert find_nothing(check_unlike_siblings, make_layers([4.0, 5.0, 3.0, 4.5, 3.5, 4.2, 3.8, 4.0, 6.0]))
    assert find_nothing(check_unlike_siblings, make_layers([4.0] * 24 + [8.0] * 8))  # two kinds of layers


def test_few_siblings_steps_and_linear_modules_are_no_family() -> None:
    why = "there are no 5 ranges whose names differ in one number only"
    for template, times in (
        ("layer_{}", [4.0, 4.0, 4.0, 9.0]), ("ProfilerStep#{}", [*STEADY, 9.0]),
        ("nn.Module: Linear_{}", [*STEADY, 9.0]), ("bucket {}", [*STEADY, 9.0]),
        ("iteration-{}", [*STEADY, 9.0]), ("LayerNorm_{}", [*STEADY, 9.0]),
    ):  # fmt: skip
        assert find_why(check_unlike_siblings, make_layers(times, template)) == why, template
    sizes = make_rank(ranges=tuple(make_range(f"gemm{size}", 1, 1) for size in (64, 128, 256, 512, 1024)))
    assert find_why(check_unlike_siblings, sizes) == why


def test_host_time_is_said_to_be_host_time() -> None:
    ranges = tuple(make_range(f"layer_{number}", 8 if number else 16, None) for number in range(8))
    finding = find(check_unlike_siblings, make_rank(ranges=ranges))
    assert word(finding).title == "layer_0 takes 100.0 % more host time than the median of its 8 siblings"
    assert word(finding).consequence.startswith("Host times:")
    assert finding.share_ratio == pytest.approx(8 / 200)


def test_the_rank_with_the_odd_layer_is_named() -> None:
    ranks = [make_layers([*STEADY, 4.0], rank=rank) for rank in range(4)]
    ranks[2] = make_layers([*STEADY[:3], 7.0, *STEADY[4:], 4.0], rank=2)
    finding = find(check_unlike_siblings, *ranks)
    assert word(finding).title.startswith("layer_3 takes") and word(finding).title.endswith("on rank 2")


def test_noise_is_seldom_taken_for_an_odd_layer_and_a_real_one_is_found() -> None:
    """False alarms in less than 1 of 50 families even where a quarter is within the noise; injected faults found."""
    rng = np.random.default_rng(3)
    alarms = found = 0
    for _ in range(300):
        times = 4.0 * np.exp(0.12 * rng.standard_normal(12))
        alarms += isinstance(check_unlike_siblings(make_traced(make_layers(times.tolist()))), Finding)
        times = 4.0 * np.exp(0.01 * rng.standard_normal(12))
        times[rng.integers(12)] *= 1.4
        found += isinstance(check_unlike_siblings(make_traced(make_layers(times.tolist()))), Finding)
    assert alarms <= 6
    assert found >= 295


def test_a_range_without_instances_belongs_to_no_family() -> None:
    empty: list[RangeTotal] = [make_range(f"layer_{number}", 0, 0, count=0) for number in range(9)]
    assert "no 5 ranges" in find_why(check_unlike_siblings, make_rank(ranges=tuple(empty)))
