"""The profile of a model's modules as sections: summary, by depth, tree, layers."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.sections.module_tree import Branch, add_up, grow_tree, name_branch, walk_tree
from distprof.render.sections.section_types import Fact, Section, make_columns
from distprof.render.units import (
    clean_text,
    format_bytes,
    format_count,
    format_factor,
    format_flops,
    format_flops_per_s,
    format_macs,
    format_ratio,
    format_time,
)
from distprof.report.module_report import ModuleFlops, ModuleReport, ModuleRow

TOP, NOTE_LIMIT = 3, 300


def list_module_sections(
    report: ModuleReport, *, depth: int | None = None, top: int = TOP, fold: bool = True
) -> list[Section]:
    """The sections of a profile, in order.

    Args:
        report: The profile.
        depth: Of the tree, at most; None: all of it.
        top: Modules named at each depth.
        fold: Show identical siblings as one row.
    """
    tree = grow_tree(report.rows, fold=fold)
    return [
        Section(key="headline", title="Summary", facts=tuple(_list_facts(report))), _show_depths(report, top),
        _show_tree(report, tree, depth), _show_layers(tree),
    ]  # fmt: skip


def _list_facts(report: ModuleReport) -> list[Fact]:
    whole = report.rows[0]
    forward, backward = whole.total_flops.forward, whole.total_flops.backward
    facts = [Fact(label="parameters", number=format_count(whole.parameters), text=_format_held(whole))]
    if not whole.calls:
        return facts
    facts.append(Fact(label="forward", number=format_macs(forward), text=f" multiply-adds ({format_flops(forward)})"))
    if backward:
        ratio = f", {format_factor(backward / forward)} forward" if forward else ""
        facts.append(Fact(label="backward", number=format_macs(backward), text=f" multiply-adds, counted{ratio}"))
    if again := whole.total_flops.recomputed:
        facts.append(Fact(label="recomputed", number=format_macs(again), text=" multiply-adds, forward again"))
    outside = report.outside_flops.forward + report.outside_flops.backward
    if outside:
        facts.append(Fact(label="outside", number=format_macs(outside), text=" multiply-adds in no module"))
    if whole.activation_bytes is not None:
        text = " kept for backward"
        facts.append(Fact(label="activations", number=format_bytes(whole.activation_bytes), text=text))
    for name, took_ns, flops in (
        ("forward time", whole.total_time.forward_ns, forward),
        ("backward time", whole.total_time.backward_ns, backward),
    ):
        if took_ns:
            rate = f", {format_flops_per_s(flops / took_ns * 1e9)}" if flops else ""
            facts.append(Fact(label=name, number=format_time(took_ns), text=f"{rate}, median of {report.timed_passes}"))
    return facts


def _format_held(row: ModuleRow) -> str:
    held = "" if row.held_parameters == row.parameters else f", of which this process holds {row.held_parameters:,}"
    return f" ({format_bytes(row.parameter_bytes)}){held}"


def _show_depths(report: ModuleReport, top: int) -> Section:
    parameters = [row.own_parameters for row in report.rows]  # what modules share counts in the first, and so once
    for position, row in reversed([*enumerate(report.rows)][1:]):
        parameters[row.parent or 0] += parameters[position]
    amounts = (
        parameters, [row.total_flops.forward for row in report.rows], [_add_times(row) or 0 for row in report.rows]
    )  # fmt: skip
    rows = []
    for depth in range(1, max(row.depth for row in report.rows) + 1):
        at = [position for position, row in enumerate(report.rows) if row.depth == depth]
        rows.append((str(depth), str(len(at)), *(_name_top(report.rows, at, amount, top) for amount in amounts)))
    heads = ("depth", "modules", "most parameters", "most multiply-adds", "most time")
    return Section(
        key="module_depths", title="By depth", about="classes of modules, with their share of the model",
        columns=make_columns(heads, rows, heads[2:], non_empty_only=True),
    )  # fmt: skip


def _name_top(rows: Sequence[ModuleRow], at: Sequence[int], amounts: Sequence[float], top: int) -> str:
    """``Block 69.1 %, Embedding 30.9 %``: by class, since a depth of a deep model has hundreds of modules."""
    by_kind: dict[str, float] = {}
    for position in at:
        by_kind[rows[position].kind] = by_kind.get(rows[position].kind, 0) + amounts[position]
    largest = sorted(by_kind.items(), key=lambda item: -item[1])[:top]
    known = [(kind, amount / amounts[0]) for kind, amount in largest if amount and amounts[0]]
    return ", ".join(f"{clean_text(kind, 40)} {format_ratio(share)}" for kind, share in known)


def _show_tree(report: ModuleReport, tree: Branch[ModuleRow], depth: int | None) -> Section:
    whole = report.rows[0]
    all_ns, has_run = _add_times(whole), whole.calls > 0
    rows = []
    for level, _, branch in walk_tree(tree):
        if depth is not None and level > depth:
            continue
        parameters = sum(row.parameters for row in branch.rows)
        work = sum((row.total_flops for row in branch.rows), ModuleFlops())
        took_ns = add_up([_add_times(row) for row in branch.rows])
        activations = add_up([row.activation_bytes for row in branch.rows])
        rows.append(
            (
                name_branch(branch, level=level), clean_text(branch.first.kind, 40), format_count(parameters),
                _format_share(parameters, whole.parameters), format_macs(work.forward) if has_run else "",
                _format_share(work.forward, whole.total_flops.forward), format_macs(work.backward) if has_run else "",
                format_macs(work.recomputed) if work.recomputed else "",
                "" if activations is None else format_bytes(activations),
                *(_format_passes(branch, stage) for stage in ("forward_ns", "backward_ns")),
                "" if took_ns is None or not all_ns else format_ratio(took_ns / all_ns),
                "" if not took_ns else format_flops_per_s(work.total / took_ns * 1e9),
            )
        )  # fmt: skip
    heads = (
        "module", "class", "parameters", "of all", "forward", "of forward", "backward", "recomputed", "activations",
        "forward time", "backward time", "of time", "FLOP/s",
    )  # fmt: skip
    notes = ["forward, backward, recomputed: multiply-adds, submodules included"] if has_run else []
    if any(len(branch.rows) > 1 for *_, branch in walk_tree(tree)):
        notes.append("a row of several identical modules adds them up; --unfold shows each")
    return Section(
        key="module_tree", title="Modules", columns=make_columns(heads, rows, ("class",), non_empty_only=True),
        notes=(*notes, *(clean_text(note, NOTE_LIMIT) for note in report.notes)),
    )  # fmt: skip


def _show_layers(tree: Branch[ModuleRow]) -> Section:
    rows = []
    for level, name, branch in walk_tree(tree):
        row = branch.first
        if branch.inner and not any(each.own_parameters for each in branch.rows):
            continue
        shapes = ", ".join("x".join(map(str, shape)) or "scalar" for shape in row.output_shapes or ())
        own_work = sum(each.self_flops.forward for each in branch.rows)
        rows.append(
            (
                clean_text(row.kind, 40), str(level), clean_text(name), clean_text(shapes, 60),
                format_count(sum(each.own_parameters for each in branch.rows)),
                *(
                    (str(sum(each.calls for each in branch.rows)), format_macs(own_work))
                    if tree.first.calls
                    else ("", "")
                ),
            )
        )  # fmt: skip
    heads = ("class", "depth", "module", "output", "parameters", "calls", "multiply-adds")
    first = tree.first
    sizes = [f"parameters {format_bytes(first.parameter_bytes)}"]
    sizes += [f"input {format_bytes(first.input_bytes)}"] if first.input_bytes else []  # of those by position
    sizes += [f"activations {format_bytes(first.activation_bytes)}"] if first.activation_bytes is not None else []
    return Section(
        key="module_layers", title="Layers", about="modules with parameters of their own or without submodules",
        columns=make_columns(heads, rows, ("class", "module", "output"), non_empty_only=not first.calls),
        notes=(", ".join(sizes),),
    )  # fmt: skip


def _add_times(row: ModuleRow) -> float | None:
    took = (row.total_time.forward_ns, row.total_time.backward_ns, row.total_time.recomputed_ns)
    return add_up(took)


def _format_passes(branch: Branch[ModuleRow], field: str) -> str:
    took_ns = add_up([getattr(row.total_time, field) for row in branch.rows])
    return "" if took_ns is None else format_time(took_ns)


def _format_share(part: float, whole: float) -> str:
    return format_ratio(part / whole) if whole else ""
