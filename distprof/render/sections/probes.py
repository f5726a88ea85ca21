"""What targeted probes of suspected ranks say: a sentence, and a table of all that was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from distprof.facts.run import name_ranks
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import (
    NOT_MEASURED,
    clean_text,
    format_bandwidth,
    format_flops_per_s,
    format_ratio,
    format_time,
)
from distprof.report.probe_report import ProbedPart, ProbedRankReport, ProbeFigure, ProbeFinding, ProbeReport

_FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "product_flops_per_s": ("matrix products", format_flops_per_s),
    "copy_bytes_per_s": ("copies in the host's memory", format_bandwidth),
    "to_device_bytes_per_s": ("copies from the host to the device", format_bandwidth),
    "device_copy_bytes_per_s": ("copies in the device's memory", format_bandwidth),
    "bytes_per_s": ("exchanges", format_bandwidth),
    "latency_ns": ("small exchanges", format_time),
}
_NOTE = "medians of {} rounds; ±: half the distance of their quartiles; exchange: from the rank / to it, latency"


def describe_probes(report: ProbeReport) -> str:
    """One sentence: the device, the host or the link, or that nothing differs."""
    who = name_ranks(report.suspects)
    if not report.enough:
        return f"Too few rounds ({report.rounds}) were measured to tell a difference from chance: use more --seconds."
    said = [_describe_finding(report, finding) for finding in report.findings]
    if not said:
        said.append(f"nothing differs beyond the spread of the repeated measurements: {who} and "
                    f"{name_ranks(report.references)} are alike")  # fmt: skip
    if report.link_unknown:
        links = name_ranks(report.link_unknown)
        said.append(f"the link of {links} is not judged, since no other probed pair lies like its pairs")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _describe_finding(report: ProbeReport, finding: ProbeFinding) -> str:
    what, show = _FIGURES[finding.figure]
    who, host = name_ranks(finding.ranks), f"host {clean_text(finding.host)}"
    references = name_ranks([rank for rank in report.references if rank not in finding.ranks])
    less = format_ratio(finding.shortfall_ratio)
    if finding.part is ProbedPart.LINK:
        whom = references if finding.peer is None else f"rank {finding.peer}"
        than = "those of the other pairs" if finding.peer is not None else "those between the references"
        if finding.figure == "latency_ns":
            figures = f"take {show(finding.median)}, against {show(finding.least)} between other ranks"
        else:
            figures = f"reach {show(finding.median)}, {less} less than {than}"
        return f"it is the link between {who} and {whom}: {what} {figures}"
    name = {
        ProbedPart.DEVICE: f"the device of {who} ({_name_device(report, finding)}, {host})",
        ProbedPart.HOST: f"{host} ({who})",
        ProbedPart.DEVICE_OR_HOST: f"the device or the host of {who} ({host}; no other rank there was probed)",
    }[finding.part]
    more = "".join(f", and so do {_FIGURES[other][0]}" for other in finding.others)
    return f"it is {name}: {what} reach {show(finding.median)}, {less} less than on {references}{more}"


def _name_device(report: ProbeReport, finding: ProbeFinding) -> str:
    if report.device_type == "cpu":
        return "its cores"
    return next(clean_text(item.device) for item in report.ranks if item.rank == finding.ranks[0])


def show_probes(report: ProbeReport | None) -> Section:
    """A row per rank; without content if nothing was probed."""
    if report is None:
        return Section(key="probes", title="probes")
    heads = (
        "rank", "host", "device", "product", "copy", "to device", "device copy",
        *(f"exchange with rank {rank}" for rank in report.references),
    )  # fmt: skip
    rows = [tuple(_list_cells(report, item)) for item in report.ranks]
    return Section(
        key="probes", title=f"probes of {name_ranks(report.suspects)} against {name_ranks(report.references)}",
        columns=make_columns(heads, rows, ("host", "device"), non_empty_only=True),
        notes=(_NOTE.format(report.rounds), describe_probes(report)),
    )  # fmt: skip


def _list_cells(report: ProbeReport, item: ProbedRankReport) -> Iterator[str]:
    yield f"{item.rank}{' (suspect)' if item.suspect else ''}"
    yield from (clean_text(item.host), clean_text(item.device))
    yield _show(item.product_flops_per_s, format_flops_per_s)
    for figure in (item.copy_bytes_per_s, item.to_device_bytes_per_s, item.device_copy_bytes_per_s):
        yield _show(figure, format_bandwidth)
    for peer in report.references:
        yield _show_exchange(report, item.rank, peer)


def _show_exchange(report: ProbeReport, rank: int, peer: int) -> str:
    pair = next((pair for pair in report.pairs if {pair.rank, pair.peer} == {rank, peer}), None)
    if pair is None or pair.latency_ns is None:
        return ""
    ways = [way for way in (pair.there_bytes_per_s, pair.back_bytes_per_s) if way is not None]
    speeds = [format_bandwidth(way.median) for way in (ways if pair.rank == rank else ways[::-1])]
    return f"{' / '.join(speeds)} ±{_show_spread(max(ways, key=_spread))}, {format_time(pair.latency_ns.median)}"


def _show(figure: ProbeFigure | None, show: Callable[[float | None], str]) -> str:
    if figure is None:
        return NOT_MEASURED
    return f"{show(figure.median)} ±{_show_spread(figure)}"


def _show_spread(figure: ProbeFigure) -> str:
    return f"{_spread(figure) * 100:.0f} %"


def _spread(figure: ProbeFigure) -> float:
    return (figure.high - figure.low) / 2 / figure.median
