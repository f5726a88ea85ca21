"""The judge of targeted probes, with made-up measurements: device, host, link, or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from distprof.analyze.judge_probes import judge_probes
from distprof.facts.probes import ProbedPair, ProbedRank, SuspectProbes
from distprof.render.sections.probes import describe_probes, show_probes
from distprof.report.probe_report import ProbedPart, ProbeFigure, ProbeFinding

ROUNDS = 15
HOSTS = "aaa"
COPY = "copy_bytes_per_s"


def vary(value: float, spread: float, seed: int) -> tuple[float, ...]:
    """Rounds around a value; with a spread of 0 all alike but for a hair, which no two ranks share."""
    draw = np.random.default_rng(seed)
    return tuple((value * np.exp(draw.normal(0, max(spread, 1e-6), ROUNDS))).tolist())


def make(
    suspects: Sequence[int] = (1,),
    hosts: str = HOSTS,
    *,
    references: tuple[int, int] | None = None,
    product: Mapping[int, float] | None = None,
    copy: Mapping[int, float] | None = None,
    there: Mapping[tuple[int, int], float] | None = None,
    latency: Mapping[tuple[int, int], float] | None = None,
    spread: float = 0.0,
    seed: int = 0,
    device_type: str = "cpu",
) -> SuspectProbes:
    """Everything reaches 100 G, across hosts 10 G, but for what is given as a share of that."""
    near, far = references or [rank for rank in range(len(hosts)) if rank not in suspects][:2]
    seeds = iter(range(1000 * seed, 1000 * seed + 999))
    pairs = sorted({*(tuple(sorted((one, other))) for one in suspects for other in (near, far)), (near, far)})
    product, copy, there, latency = (given or {} for given in (product, copy, there, latency))
    return SuspectProbes(
        device_type=device_type, backend="gloo", suspects=tuple(suspects), references=(near, far),
        ranks=tuple(
            ProbedRank(
                rank=rank, host=hosts[rank], device="made up",
                product_flops_per_s=vary(1e11 * product.get(rank, 1), spread, next(seeds)),
                copy_bytes_per_s=vary(1e11 * copy.get(rank, 1), spread, next(seeds)),
            )
            for rank in sorted({*suspects, near, far})
        ),
        pairs=tuple(
            ProbedPair(
                rank=a, peer=b, latency_ns=vary(3e4 * latency.get((a, b), 1), spread, next(seeds)),
                there_bytes_per_s=vary(
                    (1e11 if hosts[a] == hosts[b] else 1e10) * there.get((a, b), 1), spread, next(seeds)
                ),
                back_bytes_per_s=vary(1e11 if hosts[a] == hosts[b] else 1e10, spread, next(seeds)),
            )
            for a, b in pairs
        ),
    )  # fmt: skip


def find(probes: SuspectProbes) -> list[tuple[str, tuple[int, ...], str]]:
    return [(str(item.part), item.ranks, item.figure) for item in judge_probes(probes).findings]


def test_a_device_by_hand() -> None:
    """Ranks 0 and 2 reach 100 and 96 in most rounds, rank 1 reaches 60: 37.5 % less than 96."""
    probes = make()
    figures = {0: [100.0] * 12 + [50.0] * 3, 1: [97.0] + [60.0] * 14, 2: [96.0] * 15}
    ranks = [structs.replace(item, product_flops_per_s=tuple(figures[item.rank])) for item in probes.ranks]
    report = judge_probes(structs.replace(probes, ranks=tuple(ranks)))
    # Rank 1 is the slowest in 11 of 15 rounds (in three it is rank 0, in one rank 2): by chance with probability
    # 0.0018, where 0.01 / 8 is allowed.
    assert report.findings == ()
    figures[0][12] = 100.0
    ranks = [structs.replace(item, product_flops_per_s=tuple(figures[item.rank])) for item in probes.ranks]
    report = judge_probes(structs.replace(probes, ranks=tuple(ranks)))
    # In 12 of 15: 0.0003. The references are 4 % apart, and no rank's median deviation is above 0.
    assert report.findings == (
        ProbeFinding(
            part=ProbedPart.DEVICE, ranks=(1,), host="a", peer=None, figure="product_flops_per_s", median=60.0,
            least=96.0, shortfall_ratio=0.375, others=(),
        ),
    )  # fmt: skip
    assert report.ranks[0].product_flops_per_s == ProbeFigure(median=100.0, low=100.0, high=100.0)
    assert describe_probes(report) == (
        "It is the device of rank 1 (its cores, host a): matrix products reach 60.00 FLOP/s, 37.5 % less than on "
        "ranks 0, 2."
    )
    assert show_probes(report).rows[1][:4] == ("1 (suspect)", "a", "made up", "60.00 FLOP/s ±0 %")


@pytest.mark.parametrize(
    ("probes", "found"),
    [
        (make(), []),
        (make(product={1: 0.95}), []),  # a tenth is the least
        (make(product={1: 0.8, 0: 0.85}), []),  # the references are further apart
        (make(product={1: 0.5}, spread=1.0), []),  # the rounds vary by more
        (make(product={1: 0.5}, spread=0.1), [("device", (1,), "product_flops_per_s")]),
        (make(copy={1: 0.5}), [("device", (1,), "copy_bytes_per_s")]),
        (make(copy={0: 0.5}), []),  # a reference is slow, the suspect is not
        # Alone on its host, or all suspects of a host.
        (make(hosts="abc", product={1: 0.5}), [("device or host", (1,), "product_flops_per_s")]),
        (make(hosts="abc", product={1: 0.5}, device_type="cuda"), [("device", (1,), "product_flops_per_s")]),
        (make(hosts="abc", copy={1: 0.5}, device_type="cuda"), [("host", (1,), "copy_bytes_per_s")]),
        (make((2, 3), "abccd", copy={2: 0.5, 3: 0.6}), [("host", (2, 3), "copy_bytes_per_s")]),
        (make((2, 3), "abccd", copy={3: 0.6}), [("device or host", (3,), "copy_bytes_per_s")]),
        # With a reference on the host of the suspect, and one on another.
        (make(hosts="aab", product={0: 0.5, 1: 0.5}), [("host", (0, 1), "product_flops_per_s")]),
        (make(hosts="aab", product={1: 0.5}), [("device", (1,), "product_flops_per_s")]),
        (make((1, 2), "aaab", copy=dict.fromkeys(range(3), 0.5), references=(0, 3)), [("host", (0, 1, 2), COPY)]),
        # Links: one way is enough; all pairs, or one of them; a slow rank explains its exchanges.
        (make(there={(0, 1): 0.5, (1, 2): 0.5}), [("link", (1,), "bytes_per_s")]),
        (make(there={(0, 1): 0.8, (1, 2): 0.8}), []),
        (make(there={(0, 1): 0.5}), [("link", (1,), "bytes_per_s")]),
        (make(there={(0, 2): 0.5}), []),
        (make(latency={(0, 1): 5, (1, 2): 5}), [("link", (1,), "latency_ns")]),
        (make(latency={(0, 1): 2.5, (1, 2): 2.5}), []),  # 45 us more
        (make(hosts="aab", there={(1, 2): 0.5}), [("link", (1,), "bytes_per_s")]),
        (make(hosts="aab", there={(0, 1): 0.5}), []),  # no other pair is within a host
        (make(product={1: 0.5}, there={(0, 1): 0.5, (1, 2): 0.5}), [("device", (1,), "product_flops_per_s")]),
    ],
)  # fmt: skip
def test_which_part_it_is(probes: SuspectProbes, found: list[tuple[str, tuple[int, ...], str]]) -> None:
    assert find(probes) == found


ALIKE = "Nothing differs beyond the spread of the repeated measurements: rank {} and ranks {} are alike"
SAID = {
    ALIKE.format(1, "0, 2") + ".": make(),
    ALIKE.format(0, "1-2")
    + "; the link of rank 0 is not judged, since no other probed pair lies like its pairs.": make((0,), hosts="abb"),
    "It is host a (ranks 0-1): copies in the host's memory reach 50.00 GB/s, 50.0 % less than on rank 2, and so do "
    "matrix products.": make(hosts="aab", copy={0: 0.5, 1: 0.5}, product={0: 0.6, 1: 0.6}),
    "It is the link between rank 1 and ranks 0, 2: exchanges reach 5.00 GB/s, 50.0 % less than those between the "
    "references.": make(hosts="abc", there={(0, 1): 0.5, (1, 2): 0.5}),
    "It is the link between rank 1 and rank 2: exchanges reach 5.00 GB/s, 50.0 % less than those of the other "
    "pairs.": make(hosts="abc", there={(1, 2): 0.5}),
    "It is the link between rank 1 and ranks 0, 2: small exchanges take 150.0 us, against 30.0 us between other "
    "ranks.": make(latency={(0, 1): 5, (1, 2): 5}),
}


@pytest.mark.parametrize("said", SAID)
def test_what_is_said(said: str) -> None:
    assert describe_probes(judge_probes(SAID[said])) == said


def test_few_rounds_conclude_nothing() -> None:
    probes = make(product={1: 0.1})
    short = [structs.replace(item, latency_ns=item.latency_ns[:9]) for item in probes.pairs]
    report = judge_probes(structs.replace(probes, pairs=tuple(short)))
    assert not report.enough and report.findings == ()
    assert describe_probes(report).startswith("Too few rounds (9)")
    assert not judge_probes(structs.replace(probes, pairs=(), ranks=())).enough


@given(
    suspect=st.integers(0, 2), spread=st.floats(0, 0.3), share=st.floats(0.01, 1.0), seed=st.integers(0, 10_000),
    scale=st.floats(1e-3, 1e3),
)  # fmt: skip
def test_only_a_slow_suspect_is_named_and_no_unit_matters(
    suspect: int, spread: float, share: float, seed: int, scale: float
) -> None:
    probes = make((suspect,), product={suspect: share}, spread=spread, seed=seed)
    found = find(probes)
    assert found in ([], [("device", (suspect,), "product_flops_per_s")])
    if share < 0.9 and spread < 0.01:
        assert found
    if share > 0.9:
        assert not found
    scaled = [
        structs.replace(item, product_flops_per_s=tuple(value * scale for value in item.product_flops_per_s))
        for item in probes.ranks
    ]
    assert find(structs.replace(probes, ranks=tuple(scaled))) == found


def test_of_300_jobs_with_nobody_slow_name_hardly_anybody() -> None:
    named = sum(bool(find(make((seed % 3,), spread=0.3, seed=seed))) for seed in range(300))
    assert named <= 2
