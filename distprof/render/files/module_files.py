"""Tables of modules as columns for CSV and Parquet: one row per module, each before its submodules."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.files.column_files import Columns
from distprof.render.sections.traced_modules import EVERYTHING
from distprof.report.job_modules import JobModule, JobModules
from distprof.report.module_report import ModuleFlops, ModuleReport, ModuleRow, Taken
from distprof.report.report import Report
from distprof.report.trace_report import TracedModule, TracedModules
from distprof.report.wait_report import Spread

Cells = dict[str, list[str | float | int | None]]
FLOPS = ModuleFlops.__struct_fields__
TIMES = Taken.__struct_fields__


def list_module_tables(report: Report) -> dict[str, Columns]:
    """The tables of a run by name; none where modules were not profiled."""
    traced = None if report.activity is None else report.activity.modules
    tables: dict[str, Columns] = {}
    if report.modules is not None:
        tables["modules"] = _list_job(report.modules)
    if traced is not None:
        tables["kernel_modules"] = _list_traced(traced)
    return tables


def list_profile_columns(report: ModuleReport) -> Columns:
    """A profile without training, every figure of it."""
    rows = report.rows
    columns: Cells = {
        **_identify(rows, [row.name for row in rows]),
        "depth": [row.depth for row in rows], "aliases": [", ".join(row.aliases) for row in rows],
        "calls": [row.calls for row in rows], "output": [_show_shapes(row) for row in rows],
    }  # fmt: skip
    for field in ("own_parameters", "parameters", "held_parameters", "parameter_bytes", "buffer_bytes", "input_bytes",
                  "self_activation_bytes", "activation_bytes"):  # fmt: skip
        columns[field] = [getattr(row, field) for row in rows]
    for which in ("self", "total"):
        for stage in FLOPS:
            columns[f"{which}_{stage}_flops"] = [getattr(getattr(row, f"{which}_flops"), stage) for row in rows]
        for time in TIMES:
            columns[f"{which}_{time}"] = [getattr(getattr(row, f"{which}_time"), time) for row in rows]
    return columns


def _list_job(modules: JobModules) -> Columns:
    """The ranks side by side; times of a step on the clock that the column names."""
    rows = modules.rows
    columns: Cells = {
        **_identify(rows, [row.name for row in rows]),
        "calls": [row.calls for row in rows], "own_parameters": [row.own_parameters for row in rows],
        "parameters": [row.parameters for row in rows],
        **_spread("held", "parameters", [row.held_parameters for row in rows]),
    }  # fmt: skip
    for stage in FLOPS:
        columns[f"{stage}_flops"] = [None if row.flops is None else getattr(row.flops, stage) for row in rows]
    for stage in FLOPS:
        columns |= _spread(f"{stage}_{modules.clock}", "ns", [getattr(row, f"{stage}_ns") for row in rows])
    return columns


def _list_traced(modules: TracedModules) -> Columns:
    """The ranks side by side, both clocks."""
    rows = modules.rows
    columns = _identify(rows, [row.name if row.kind else EVERYTHING for row in rows])
    columns["calls"] = [row.calls.median for row in rows]
    for clock in ("host", "device"):
        for part in ("self", "total", *FLOPS):
            columns |= _spread(f"{part}_{clock}", "ns", [getattr(row, f"{part}_{clock}_ns") for row in rows])
    return columns


def _identify(rows: Sequence[ModuleRow | JobModule | TracedModule], names: Sequence[str]) -> Cells:
    """Which module a row is, and which one holds it, by these names of the rows."""
    return {
        "module": [*names], "class": [row.kind for row in rows],
        "parent": [None if row.parent is None else names[row.parent] for row in rows],
    }  # fmt: skip


def _spread(name: str, unit: str, spreads: Sequence[Spread]) -> Cells:
    """Median, least and most, and whose these are."""
    columns: Cells = {f"{name}_median_{unit}": [spread.median for spread in spreads]}
    for end in ("min", "max"):
        columns[f"{name}_{end}_{unit}"] = [getattr(spread, end) for spread in spreads]
        columns[f"{name}_{end}_rank"] = [getattr(spread, f"{end}_rank") for spread in spreads]
    return columns


def _show_shapes(row: ModuleRow) -> str | None:
    """``4x128, 4``. None: it was not called."""
    if row.output_shapes is None:
        return None
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in row.output_shapes)
