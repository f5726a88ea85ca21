"""The W&B workspace that shows what distprof logs, made with the classes of the wandb-workspaces package."""

from __future__ import annotations

import importlib.util
from typing import Any

from distprof.errors import UsageError
from distprof.render.wandb.wandb_panels import NAME, PINNED, SECTIONS, STEP, Panel

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


def describe_workspace(workspace: Any) -> dict[str, Any]:
    """Its specification as JSON-ready containers, as W&B is sent it."""
    described: dict[str, Any] = workspace._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return described


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
