"""The W&B workspace that shows what distprof logs, made with the classes of the wandb-workspaces package."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

from msgspec import Struct

from distprof.errors import UsageError
from distprof.facts.run import PHASES, Clock

STEP = "step"
"""What lines are drawn over; see `distprof.analyze.live.live_metrics.METRICS`."""
NAME = "distprof"
SWEEP_TABLE, SWEEP_CHART = "sweep_jobs", "sweep/step_time"
"""What a sweep logs at its end, in a run of its own."""
PINNED = (
    "verdict", "verdict_critical", "verdict_rank", "verdict_phase", "verdict_lost_ratio", "step_mean_ms",
    "tokens_per_s", "mfu_ratio", "exposed_ratio",
)  # fmt: skip
"""Of the summary: columns of the list of runs."""


class Panel(Struct, frozen=True, kw_only=True):
    """One panel."""

    kind: Literal["lines", "stack", "runs", "groups", "image", "drawing", "table", "rank bars"]
    """lines, stack: names over steps. runs, groups: a bar per run or per group of runs. image, drawing, table: what has
    this name. rank bars: a bar per rank, of columns of a table."""
    title: str
    names: tuple[str, ...]
    table: str | None = None
    """Of rank bars: the table with these columns."""


class PanelSection(Struct, frozen=True, kw_only=True):
    """Panels under one head."""

    name: str
    panels: tuple[Panel, ...]


def _lines(title: str, *names: str) -> Panel:
    return Panel(kind="lines", title=title, names=names)


def _stack_phases(clock: Clock) -> Panel:
    names = tuple(f"phase/{phase}/{clock}_ms" for phase in PHASES)
    return Panel(kind="stack", title=f"Phases by step, ms, mean over ranks, {clock} clock", names=names)


def _bars(title: str, column: str) -> Panel:
    return Panel(kind="rank bars", title=title, names=("rank", column), table="ranks_by_phase")


def _table(title: str, name: str) -> Panel:
    return Panel(kind="table", title=title, names=(name,))


SECTIONS = (
    PanelSection(name="Who holds the job up", panels=(
        _table("Verdict", "verdict"),
        _table("Causes: who, how much, since when", "causes"),
        _lines("Rank that the report would name by the last steps", "straggler/rank"),
        _lines("Most own time of a rank less the others' median, ms", "straggler/excess_ms"),
        Panel(kind="runs", title="Step time lost to the largest cause, share", names=("summary/verdict_lost_ratio",)),
        Panel(kind="runs", title="First step of the largest cause", names=("summary/verdict_first_step",)),
    )),
    PanelSection(name="Where the time goes", panels=(
        _stack_phases(Clock.HOST),
        _stack_phases(Clock.DEVICE),
        _lines("Exposed communication, share of the step", "comm/exposed_host_ratio", "comm/exposed_device_ratio"),
        _lines("Step time, ms", "step/time_ms"),
        _lines("Tokens per second", "step/tokens_per_s"),
        _lines("Loss", "step/loss"),
    )),
    PanelSection(name="Ranks", panels=(
        Panel(kind="image", title="Own time by rank and step", names=("heat_map/own",)),
        Panel(kind="image", title="Exposed communication by rank and step", names=("heat_map/exposed",)),
        _table("Ranks", "ranks_by_phase"),
        _table("Ranks by steps", "rank_by_step"),
        _bars("Own time by rank, ms", "own_ms"),
        _bars("Exposed communication by rank, ms", "exposed_ms"),
    )),
    PanelSection(name="Devices", panels=(
        _lines("Model FLOP/s of a device", "flops/achieved_per_device"),
        _lines("MFU", "flops/mfu_ratio"),
        _bars("Model FLOP/s by rank", "achieved_flops_per_s"),
        _bars("MFU by rank", "mfu_ratio"),
        _bars("Peak memory by rank, bytes", "memory_peak_bytes"),
        _lines("Memory of the fullest rank, bytes", "memory/peak_bytes_max", "memory/current_bytes_max"),
    )),
    PanelSection(name="Sweep", panels=(
        Panel(kind="drawing", title="Step time by job with its interval", names=(SWEEP_CHART,)),
        _table("Jobs of a sweep", SWEEP_TABLE),
        Panel(kind="groups", title="Step time by group, ms", names=("summary/step_mean_ms",)),
        Panel(kind="groups", title="Tokens per second by group", names=("summary/tokens_per_s",)),
        Panel(kind="groups", title="MFU by group", names=("summary/mfu_ratio",)),
        Panel(kind="runs", title="Step time by run, ms", names=("summary/step_mean_ms",)),
        Panel(kind="runs", title="Tokens per second by run", names=("summary/tokens_per_s",)),
        Panel(kind="runs", title="Exposed communication by run, share", names=("summary/exposed_ratio",)),
    )),
)  # fmt: skip


COLUMNS, ROWS = 3, 2
"""Panels of a section that are seen at once."""


def require_workspaces() -> None:
    """Raises UsageError if the package is not installed."""
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UsageError(
            "wandb-dashboard needs the wandb-workspaces package: pip install 'distprof[dashboard]', "
            "or pip install wandb-workspaces"
        )


def make_workspace(entity: str, project: str, name: str = NAME) -> Any:
    """A `wandb_workspaces.workspaces.Workspace` with every panel; nothing is sent anywhere.

    Args:
        entity: Team or user.
        project: Of W&B.
        name: The workspace's.
    """
    import wandb_workspaces.workspaces as ws

    layout = ws.SectionLayoutSettings(columns=COLUMNS, rows=ROWS)
    sections = [
        ws.Section(
            name=section.name, panels=[_make_panel(panel) for panel in section.panels], is_open=True,
            layout_settings=layout,
        )
        for section in SECTIONS
    ]  # fmt: skip
    columns = ws.RunsetSettings(pinned_columns=["run:displayName", *(f"summary:summary/{key}" for key in PINNED)])
    return ws.Workspace(entity=entity, project=project, name=name, sections=sections, runset_settings=columns)


def save_workspace(workspace: Any) -> str:
    """Saves it as a new view, and returns its address. Needs the network and a login.

    Raises:
        Exception: Whatever wandb raises.
    """
    workspace.save()
    return str(workspace.url)


def _make_panel(panel: Panel) -> Any:
    import wandb_workspaces.reports.v2 as wr

    if panel.kind in ("lines", "stack"):
        style = "stacked-area" if panel.kind == "stack" else "line"
        return wr.LinePlot(title=panel.title, x=STEP, y=[*panel.names], plot_type=style)
    if panel.kind in ("image", "drawing"):
        return wr.MediaBrowser(title=panel.title, media_keys=[*panel.names], num_columns=1)
    if panel.kind == "table":
        return wr.WeavePanelSummaryTable(table_name=panel.names[0])
    if panel.kind == "rank bars":
        label, value = panel.names
        return wr.CustomChart(
            query={"summaryTable": {"tableKey": panel.table}}, chart_name="wandb/bar/v0",
            chart_fields={"label": label, "value": value}, chart_strings={"title": panel.title},
        )  # fmt: skip
    if panel.kind == "groups":
        return wr.BarPlot(title=panel.title, metrics=[*panel.names], groupby="Group", groupby_aggfunc="mean")
    return wr.BarPlot(title=panel.title, metrics=[*panel.names])
