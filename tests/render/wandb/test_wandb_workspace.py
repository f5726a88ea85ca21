"""The specification of the W&B workspace is the golden one, and the package's own classes read it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from distprof.render.wandb.wandb_workspace import (
    SECTIONS,
    STEP,
    Panel,
    make_workspace,
    save_workspace,
)

GOLDEN = Path(__file__).parent / "wandb_workspace.json"
PANELS = [panel for section in SECTIONS for panel in section.panels]


def describe_workspace(workspace: Any) -> dict[str, Any]:
    """Its specification, as W&B is sent it."""
    described: dict[str, Any] = workspace._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return described


needs_workspaces = pytest.mark.skipif(
    importlib.util.find_spec("wandb_workspaces") is None, reason="needs wandb-workspaces: pip install -e '.[dashboard]'"
)


def read_golden() -> dict[str, Any]:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    return golden


def list_golden_panels() -> list[dict[str, Any]]:
    sections = read_golden()["section"]["panelBankConfig"]["sections"]
    return [panel for section in sections for panel in section["panels"]]


@pytest.mark.parametrize(
    ("panel", "specified"), [*zip(PANELS, list_golden_panels(), strict=True)], ids=[panel.title for panel in PANELS]
)
def test_the_specification_asks_for_the_panels_names(panel: Panel, specified: dict[str, Any]) -> None:
    view, config = specified["viewType"], specified["config"]
    if panel.kind in ("lines", "stack"):
        assert (view, config["xAxis"], config["metrics"]) == ("Run History Line Plot", STEP, [*panel.names])
        assert config["plotType"] == ("stacked-area" if panel.kind == "stack" else "line")
    elif panel.kind in ("runs", "groups"):
        assert (view, config["metrics"]) == ("Bar Chart", [*panel.names])
        assert config.get("groupBy") == ("group" if panel.kind == "groups" else None)
    elif panel.kind in ("image", "drawing"):
        assert (view, config["mediaKeys"]) == ("Media Browser", [*panel.names])
    elif panel.kind == "table":
        key = config["panel2Config"]["exp"]["fromOp"]["inputs"]["key"]
        assert (view, key["val"]) == ("Weave", *panel.names)
    else:
        assert view == "Vega2" and (*config["fieldSettings"].values(),) == panel.names
        assert {"name": "tableKey", "value": panel.table} in config["userQuery"]["queryFields"][0]["fields"][0]["args"]
    if panel.kind != "table":
        assert panel.title in (config.get("chartTitle"), config.get("stringSettings", {}).get("title"))


@needs_workspaces
def test_the_specification_is_the_golden_one() -> None:
    """To renew it: write what `make_golden` returns."""
    assert json.loads(make_golden()) == read_golden()


def make_golden() -> str:
    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: clean(inner) for name, inner in value.items() if name != "__id__"}  # drawn at random
        return [clean(inner) for inner in value] if isinstance(value, list) else value

    return json.dumps(clean(describe_workspace(make_workspace("team", "project"))), indent=1) + "\n"


@needs_workspaces
def test_the_packages_own_classes_read_the_golden_specification() -> None:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.workspaces import internal

    spec = internal.WorkspaceViewspec.model_validate(read_golden())
    view = internal.View(entity="team", project="project", display_name="distprof", name="nw-1-v", id="1", spec=spec)
    workspace = ws.Workspace._from_model(view)
    assert [section.name for section in workspace.sections] == [section.name for section in SECTIONS]
    names = [type(panel).__name__ for section in workspace.sections for panel in section.panels]
    kinds = {"lines": "LinePlot", "stack": "LinePlot", "runs": "BarPlot", "groups": "BarPlot", "image": "MediaBrowser"}
    kinds |= {"drawing": "MediaBrowser", "table": "WeavePanelSummaryTable", "rank bars": "CustomChart"}
    assert names == [kinds[panel.kind] for panel in PANELS]


@needs_workspaces
def test_what_is_saved_is_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    from wandb_workspaces.workspaces import Workspace, internal

    sent: list[Any] = []

    def upsert(view: Any) -> dict[str, Any]:
        sent.append(view)
        return {"upsertView": {"view": {"name": "nw-abc-v", "id": "1"}}}

    monkeypatch.setattr(internal, "upsert_view2", upsert)
    monkeypatch.setattr(Workspace, "url", "https://wandb.example/team/project?nw=abc")
    workspace = make_workspace("team", "project", "nightly")
    assert save_workspace(workspace) == "https://wandb.example/team/project?nw=abc"
    (view,) = sent
    assert (view.entity, view.project, view.display_name) == ("team", "project", "nightly")
    assert view.spec.model_dump(mode="json", by_alias=True, exclude_none=True) == describe_workspace(workspace)
