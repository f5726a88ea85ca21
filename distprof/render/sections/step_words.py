"""The picture of one step in words: which step it is, who is in it, and how far its clocks can be trusted."""

from __future__ import annotations

from distprof.facts.run import Clock
from distprof.facts.trace_summary import DeviceState
from distprof.render.sections.rank_names import describe_place, name_rank
from distprof.render.units import clean_text, format_time
from distprof.report.report import Report
from distprof.report.step_timeline import StepChoice, StepTimeline, TimelineLane

LABEL_LIMIT = 22
"""Characters of a lane's label."""

DEVICE_WORDS = {
    DeviceState.COMPUTE: "device: compute", DeviceState.COPIES: "device: copies",
    DeviceState.EXPOSED: "device: only collectives", DeviceState.HOST: "device idle: not launched yet",
    DeviceState.LAUNCH: "device idle: launched", DeviceState.UNKNOWN: "device idle: unknown",
}  # fmt: skip
"""What a device does, in the order of the legend."""


def title_picture(timeline: StepTimeline) -> str:
    """``Step 12, a typical one: 248 ms.``"""
    which = "a typical one" if timeline.choice is StepChoice.TYPICAL else "the longest"
    among = "" if timeline.of_all else " of those that were kept"
    return f"Step {timeline.step:,}, {which}{among}: {format_time(timeline.step_ns)}."


def describe_picture(timeline: StepTimeline, report: Report | None) -> str:
    """Everything that has to be known to read it."""
    lanes = len(timeline.lanes)
    told = [f"{lanes:,} {'row' if lanes == 1 else 'rows'}, one per {'rank' if _has_ranks(timeline) else 'stage'}"]
    if timeline.lanes_left_out:
        told[0] += f"; {timeline.lanes_left_out:,} ranks that stand out less are left out"
    if any(lane.device is not None for lane in timeline.lanes):
        told.append("the second bar is the device, with the cause where it idles")
    if timeline.collectives:
        told.append("the thin bar at the bottom of a row is its collectives, hatched until the last rank arrives")
        told.append("the lines join arrivals")
    if timeline.transfers.sources:
        told.append("thin lines are sends to another stage, until the receiver has it")
    hidden = [
        f"{number:,} {what}"
        for number, what in (
            (timeline.collectives_left_out, "collectives"), (timeline.transfers_left_out, "sends"),
        ) if number
    ]  # fmt: skip
    if hidden:
        told.append(f"{' and '.join(hidden)} are not drawn")
    told.append(_describe_clock(timeline, report))
    return "; ".join(told)[:1].upper() + "; ".join(told)[1:] + "."


def _describe_clock(timeline: StepTimeline, report: Report | None) -> str:
    if report is None:
        return "times are those of the table"
    launch = (
        " (on a GPU: when the host launched it)"
        if report.device_type == "cuda" and timeline.clock == Clock.HOST
        else ""
    )
    clock = f"times are of the {timeline.clock} clock{launch}"
    if timeline.bound_ns is None:
        return f"{clock}, and the clocks of different hosts are not known against each other: those rows begin at 0"
    if timeline.bound_ns == 0:
        return f"{clock}, which the rows share"
    return f"{clock}, and two rows may be shifted by up to {format_time(timeline.bound_ns)}"


def _has_ranks(timeline: StepTimeline) -> bool:
    return any(lane.rank is not None for lane in timeline.lanes)


def name_lane(lane: TimelineLane, report: Report | None) -> str:
    """A short label: ``rank 3 (dp 1, pp 0)``, or ``dp 1, stage 0`` where the lanes are those of a table."""
    place = "" if report is None else describe_place(report, lane.rank)
    if lane.stage is not None and "pp" not in place:
        place = ", ".join([place or f"dp {lane.replica}", f"stage {lane.stage}"])
    if report is None and place:
        return place
    rank = f"rank {lane.rank}"
    whole = f"{rank} ({place})" if place else rank
    return whole if len(whole) <= LABEL_LIMIT else f"{rank} ({clean_text(place, LABEL_LIMIT - len(rank) - 3)})"


def describe_lane(lane: TimelineLane, report: Report | None) -> str:
    """All that is known of where it is."""
    stage = "" if lane.stage is None else f", stage {lane.stage} of replica {lane.replica}"
    if lane.rank is None:
        return stage.removeprefix(", ")
    return f"{f'rank {lane.rank}' if report is None else name_rank(report, lane.rank)}{stage}"
