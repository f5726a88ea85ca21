"""The modules of a model as traces show them: what host and device do in each, with the ranks side by side."""

from __future__ import annotations

from distprof.render.sections.module_tree import (
    Branch,
    add_up,
    choose_largest,
    draw_tree,
    grow_tree,
    name_branch,
    show_times,
)
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.units import clean_text, format_count, format_time
from distprof.report.report import Report
from distprof.report.trace_report import TracedModule, TracedModules

EVERYTHING = "(everything)"
HEADS = (
    "module", "class", "calls", "host self", "host total", "host least", "host most", "device self", "device total",
    "device least", "device most", "forward", "backward", "recomputed",
)  # fmt: skip
CLOCK_NOTE = (
    "host: in operators, also of collectives, without the program's own code between them; device: kernels and copies "
    "that were launched there, without collectives. Neither is part of the other"
)
SELF_NOTE = (
    "self: outside of submodules, total: with them, each in forward, backward and recomputation; forward, backward, "
    "recomputed: parts of the total, the device's where it is known; self of everything: what runs in no module"
)


def show_traced_modules(report: Report) -> Section:
    """The modules in which most of the time goes; no content where no trace tells modules apart."""
    modules = None if report.activity is None else report.activity.modules
    if modules is None:
        return Section(key="traced_modules", title="modules in traces")
    chosen, more = choose_largest(modules.rows, _weigh)
    rows = [(_name(branch, level), *_describe(modules, branch)) for level, branch in chosen]
    notes = [CLOCK_NOTE, SELF_NOTE, *more]
    if len(modules.ranks) < report.world_size:
        notes.append(f"{len(modules.ranks):,} of {report.world_size:,} ranks have a trace that tells modules apart")
    per = "mean per step" if modules.per_step else "the whole trace"
    return Section(
        key="traced_modules", title=f"modules in traces: self and total time, {per}",
        columns=make_columns(HEADS, rows, ("class",), non_empty_only=True), notes=tuple(notes),
    )  # fmt: skip


def draw_traced_modules(report: Report) -> str:
    """The tree for the page, which opens and closes. Escaped."""
    modules = None if report.activity is None else report.activity.modules
    if modules is None:
        return ""
    tree = grow_tree(modules.rows, fold=True)
    return draw_tree(tree, HEADS, lambda branch: [_name(branch), *_describe(modules, branch)])


def _name(branch: Branch[TracedModule], level: int = 0) -> str:
    return name_branch(branch, "(model)" if branch.first.kind else EVERYTHING, level=level)


def _describe(modules: TracedModules, branch: Branch[TracedModule]) -> list[str]:
    ranks = len(modules.ranks)
    on_device = branch.first.total_device_ns.median is not None
    calls = add_up([row.calls.median for row in branch.rows])
    parts = [
        [row.forward_device_ns if on_device else row.forward_host_ns for row in branch.rows],
        [row.backward_device_ns if on_device else row.backward_host_ns for row in branch.rows],
        [row.recomputed_device_ns if on_device else row.recomputed_host_ns for row in branch.rows],
    ]
    return [
        clean_text(branch.first.kind, 40), format_count(calls) if branch.first.kind else "",
        show_times(branch, lambda row: row.self_host_ns, ranks)[0],
        *show_times(branch, lambda row: row.total_host_ns, ranks),
        show_times(branch, lambda row: row.self_device_ns, ranks)[0],
        *show_times(branch, lambda row: row.total_device_ns, ranks),
        *(_show_part(add_up([spread.median for spread in spreads])) for spreads in parts),
    ]  # fmt: skip


def _show_part(time_ns: float | None) -> str:
    """Empty: nothing, or not measured."""
    return format_time(time_ns) if time_ns else ""


def _weigh(branch: Branch[TracedModule]) -> float:
    """What a row takes on its slowest rank, ns: of the device where it is known."""
    return sum(row.total_device_ns.max or row.total_host_ns.max or 0.0 for row in branch.rows)
