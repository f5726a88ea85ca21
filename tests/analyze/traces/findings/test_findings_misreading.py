"""The rule about host times that mislead. Two steps of 100 ms unless said otherwise."""

from __future__ import annotations

import pytest
from msgspec import structs

from distprof.analyze import analyze
from distprof.analyze.traces.findings.ranges import check_host_is_not_gpu
from distprof.render.finding_texts import describe_finding as word
from distprof.render.sections.trace_rows import describe_ranges
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
    known = structs.replace(loader, loads=True)
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


def test_a_range_that_outlasts_the_steps_has_no_share_of_them() -> None:
    """It began in a step and was closed hours later: it is no share, and no swap with mlp."""
    late = make_range("forward", 10**7, 16)
    assert find_nothing(check_host_is_not_gpu, make_rank(ranges=(late, make_range("mlp", 60, 96))))


@pytest.mark.parametrize(
    ("warmup_ms", "counted", "sentence"),
    [(150, 0.6, "60.0 % of the step instead of 15.0 %"), (29, 59 / 300, None), (20, 1 / 6, None), (10**7, None, None)],
)
def test_what_counting_warmup_would_do_to_a_share(warmup_ms: int, counted: float | None, sentence: str | None) -> None:
    """A step of warm-up of 100 ms, two measured ones: 300 ms. Attention: 30 ms measured, the rest in warm-up.

    Less than 5 points, as in the second case, are too little to be worth a sentence; hours are no share of the steps.
    """
    ranges = (make_range("attention", 30, 30, warmup_count=1, warmup_host_ns=warmup_ms * MS),)
    report = analyze(make_traced(make_rank(ranges=ranges)))
    assert report.activity is not None
    assert report.activity.ranges[0].host_share_with_warmup_ratio == (counted and pytest.approx(counted))
    told = [line for line in describe_ranges(report) if "warm-up counted" in line]
    assert [sentence in line for line in told if sentence] == ([True] if sentence else [])
    assert bool(told) is bool(sentence)
