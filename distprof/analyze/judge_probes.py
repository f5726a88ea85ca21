"""Is it the device, the host or the link? What targeted probes of suspected ranks say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from distprof.analyze.stats.significance import JOB_ALPHA, binomial_tail
from distprof.analyze.stats.statistics import mad_sigma
from distprof.facts.arrays import FloatArray
from distprof.facts.probes import FIGURES, PAIR_FIGURES, ProbedPair, ProbedRank, SuspectProbes
from distprof.report.probe_report import (
    ProbedPairReport,
    ProbedPart,
    ProbedRankReport,
    ProbeFigure,
    ProbeFinding,
    ProbeReport,
)

LEAST_RATIO = {"bytes_per_s": 0.25, "latency_ns": 0.5}
"""Of an exchange: a smaller shortfall is how ranks of one host and links of one kind differ."""
LEAST_ALONE_RATIO = 0.1
"""The same of a rank by itself."""
LEAST_LATENCY_NS = 50_000
"""Latencies differ by less than this for reasons that hold no step up."""
OF_THE_DEVICE = ("product_flops_per_s", "device_copy_bytes_per_s")
"""What on a GPU has nothing to do with the host."""


class _Shortfall(NamedTuple):
    figure: str
    ratio: float
    median: float
    least: float


def judge_probes(probes: SuspectProbes) -> ProbeReport:
    """What differs beyond what the repeated measurements and the references show among themselves.

    A suspect falls short in a figure if it is the slowest in more rounds than chance explains (a sign test over the
    rounds; all tests together err with `JOB_ALPHA`), and if the medians differ by more than the two references' do,
    the spread of the rounds added. Whoever is slow by itself also exchanges slowly: a link is blamed only for ranks
    that are not.
    """
    rounds, tests = _count_rounds(probes), len(probes.suspects) * (len(FIGURES) + 2 * len(LEAST_RATIO))
    alpha = JOB_ALPHA / max(tests, 1)
    enough = binomial_tail(rounds, rounds, 1 / 2) <= alpha if rounds else False
    findings, unknown = [], []
    if enough:
        ranks = {item.rank: item for item in probes.ranks}
        findings = list(_judge_ranks(probes, ranks, alpha))
        slow = {rank for finding in findings for rank in finding.ranks}
        for suspect in [rank for rank in probes.suspects if rank not in slow]:
            alike = _compare_links(probes, ranks, suspect)
            unknown += [] if alike else [suspect]
            findings += _judge_link(suspect, ranks, alike, alpha)
    return ProbeReport(
        device_type=probes.device_type, backend=probes.backend, suspects=probes.suspects, references=probes.references,
        rounds=rounds, enough=enough, findings=tuple(findings), link_unknown=tuple(unknown),
        ranks=tuple(
            ProbedRankReport(
                rank=item.rank, suspect=item.rank in probes.suspects, host=item.host, device=item.device,
                **{name: _summarize(getattr(item, name)) for name in FIGURES},
            )
            for item in probes.ranks
        ),
        pairs=tuple(
            ProbedPairReport(
                rank=item.rank, peer=item.peer, **{name: _summarize(getattr(item, name)) for name in PAIR_FIGURES}
            )
            for item in probes.pairs
        ),
    )  # fmt: skip


def _count_rounds(probes: SuspectProbes) -> int:
    return min((len(item.latency_ns) for item in probes.pairs), default=0)


def _summarize(values: Sequence[float]) -> ProbeFigure | None:
    if not values:
        return None
    low, median, high = (float(value) for value in np.quantile(np.array(values), (0.25, 0.5, 0.75)))
    return ProbeFigure(median=median, low=low, high=high)


def _judge_ranks(probes: SuspectProbes, ranks: dict[int, ProbedRank], alpha: float) -> Iterator[ProbeFinding]:
    """Suspects that fall short by themselves, those of one slow host together."""
    references = [ranks[rank] for rank in probes.references]
    near_hosts = {item.host for item in references}
    shared: dict[str, ProbeFinding] = {}
    found: dict[str, dict[int, list[_Shortfall]]] = {}
    for suspect in probes.suspects:
        host, slow = ranks[suspect].host, _find_slow_host(references, ranks[suspect], alpha)
        if slow is None:
            found.setdefault(host, {})[suspect] = _list_shortfalls(ranks[suspect], references, alpha)
        else:
            together = {*slow.ranks, *(shared[host].ranks if host in shared else ())}
            shared[host] = replace(slow, ranks=tuple(sorted(together)))
    yield from shared.values()
    for host, members in found.items():
        common = set.intersection(*({item.figure for item in items} for items in members.values()))
        if len(members) > 1 and host not in near_hosts and common:
            figures = [item for items in members.values() for item in items if item.figure in common]
            yield _make_finding(ProbedPart.HOST, [*members], host, figures)
            continue
        for rank, items in members.items():
            if items:
                finding = _make_finding(ProbedPart.DEVICE, [rank], host, items)
                alone = host not in near_hosts
                yield replace(finding, part=_place(finding.figure, probes.device_type)) if alone else finding


def _place(figure: str, device_type: str) -> ProbedPart:
    """Which part it is where no other rank of the host tells."""
    if device_type == "cpu" or figure == "to_device_bytes_per_s":
        return ProbedPart.DEVICE_OR_HOST
    return ProbedPart.DEVICE if figure in OF_THE_DEVICE else ProbedPart.HOST


def _find_slow_host(references: Sequence[ProbedRank], suspect: ProbedRank, alpha: float) -> ProbeFinding | None:
    """The suspect's host, if the reference on it is as slow as the suspect against the one on another host."""
    near = [item for item in references if item.host == suspect.host]
    far = [item for item in references if item.host != suspect.host]
    if len(near) != 1:
        return None
    own, beside, beyond = (
        _list_shortfalls(one, others, alpha) for one, others in ((suspect, far), (near[0], far), (suspect, near))
    )
    common = {item.figure for item in beside} - {item.figure for item in beyond}
    figures = [item for item in own if item.figure in common]
    if not figures:
        return None
    return _make_finding(ProbedPart.HOST, [suspect.rank, near[0].rank], suspect.host, figures)


def _make_finding(part: ProbedPart, ranks: Sequence[int], host: str, figures: Sequence[_Shortfall]) -> ProbeFinding:
    """What is said of the figure that falls short most; the others by name."""
    worst = max(figures, key=lambda item: item.ratio)
    others = dict.fromkeys(item.figure for item in figures if item.figure != worst.figure)
    return ProbeFinding(
        part=part, ranks=tuple(sorted(ranks)), host=host, peer=None, figure=worst.figure, median=worst.median,
        least=worst.least, shortfall_ratio=worst.ratio, others=tuple(others),
    )  # fmt: skip


def _list_shortfalls(own: ProbedRank, others: Sequence[ProbedRank], alpha: float) -> list[_Shortfall]:
    found = []
    for figure in FIGURES:
        series = [np.array(getattr(item, figure)) for item in (own, *others)]
        if all(map(len, series)):
            found.append(_measure_shortfall(figure, series, alpha, LEAST_ALONE_RATIO))
    return [item for item in found if item is not None]


def _measure_shortfall(
    figure: str, series: Sequence[FloatArray], alpha: float, least_ratio: float
) -> _Shortfall | None:
    """By how much the first series is below all the others, ``[num_rounds]`` each; None: not for certain."""
    own, others = series[0], np.stack(series[1:])
    slowest = int((own < others.min(axis=0)).sum())
    if binomial_tail(slowest, len(own), 1 / len(series)) > alpha:
        return None
    medians = np.median(others, axis=1)
    median, least = float(np.median(own)), float(medians.min())
    spread = max(float(mad_sigma(np.log(values))) for values in series)
    if np.log(least / median) <= np.log(medians.max() / least) + spread or 1 - median / least < least_ratio:
        return None
    return _Shortfall(figure, 1 - median / least, median, least)


def _compare_links(probes: SuspectProbes, ranks: dict[int, ProbedRank], suspect: int) -> list[ProbedPair]:
    """The suspect's pairs that lie like the references' pair, within a host or across hosts, and that pair last.

    Empty: there is none.
    """

    def crosses(pair: ProbedPair) -> bool:
        return ranks[pair.rank].host != ranks[pair.peer].host

    base = next(item for item in probes.pairs if {item.rank, item.peer} == {*probes.references})
    own = [item for item in probes.pairs if suspect in (item.rank, item.peer) and crosses(item) == crosses(base)]
    return [*own, base] if own else []


def _judge_link(
    suspect: int, ranks: dict[int, ProbedRank], alike: Sequence[ProbedPair], alpha: float
) -> Iterator[ProbeFinding]:
    """The suspect's link to all references that it is compared for, or to one of two."""
    if not alike:
        return
    *own, base = alike
    for figure in LEAST_RATIO:
        beside = [_compare(pair, [base], figure, alpha) for pair in own]
        certain = [item for item in beside if item is not None]
        if len(certain) == len(own):
            yield _make_finding(ProbedPart.LINK, [suspect], ranks[suspect].host, certain)
            return
    for figure, pair in itertools.product(LEAST_RATIO, own if len(own) > 1 else ()):
        single = _compare(pair, [item for item in alike if item is not pair], figure, alpha)
        if single is not None:
            peer = pair.peer if pair.rank == suspect else pair.rank
            yield replace(_make_finding(ProbedPart.LINK, [suspect], ranks[suspect].host, [single]), peer=peer)
            return


def _compare(pair: ProbedPair, others: Sequence[ProbedPair], figure: str, alpha: float) -> _Shortfall | None:
    """How far a pair falls short of others, by the slower of its ways or by its latency."""
    found = _measure_shortfall(figure, [_read(item, figure) for item in (pair, *others)], alpha, LEAST_RATIO[figure])
    if found is None or figure != "latency_ns":
        return found
    median_ns, least_ns = 1 / found.median, 1 / found.least
    return found._replace(median=median_ns, least=least_ns) if median_ns - least_ns >= LEAST_LATENCY_NS else None


def _read(pair: ProbedPair, figure: str) -> FloatArray:
    """A value per round, more of which is better."""
    if figure == "latency_ns":
        return 1 / np.array(pair.latency_ns)
    return np.minimum(pair.there_bytes_per_s, pair.back_bytes_per_s)
