"""The profile of a model's modules as text: figures, folding, what is not known."""

from __future__ import annotations

import json

from msgspec import structs
from rich.console import Console

from distprof.render.sections.module_sections import list_module_sections
from distprof.render.sections.module_tree import grow_tree, walk_tree
from distprof.render.terminal.terminal import render_sections
from distprof.report.module_report import ModuleFlops, ModuleReport, ModuleRow, Taken


def make_row(name: str, kind: str, parent: int | None, parameters: int, forward: int, **more: object) -> ModuleRow:
    """A module with as much backward as twice its forward, and ten times as many nanoseconds."""
    work = ModuleFlops(forward=forward, backward=2 * forward)
    taken = Taken(forward_ns=10.0 * forward, backward_ns=20.0 * forward)
    row = ModuleRow(
        name=name, kind=kind, parent=parent, depth=name.count(".") + 1 if name else 0, aliases=(), calls=1,
        input_bytes=64, output_shapes=((2, 8),), own_parameters=parameters, parameters=parameters,
        held_parameters=parameters, parameter_bytes=4 * parameters, buffer_bytes=0, self_flops=work, total_flops=work,
        self_activation_bytes=64, activation_bytes=64, self_time=taken, total_time=taken,
    )  # fmt: skip
    return structs.replace(row, **more)  # type: ignore[arg-type]


def make_report(*rows: ModuleRow, **more: object) -> ModuleReport:
    report = ModuleReport(
        model="Model", device="cpu", inputs="float32:2x8", mode="forward_backward", timed_passes=3, rows=rows,
        outside_flops=ModuleFlops(), flops_by_operation=(), notes=(),
    )  # fmt: skip
    return structs.replace(report, **more)  # type: ignore[arg-type]


def make_blocks(number: int, odd: int = -1) -> ModuleReport:
    """A list of blocks of two layers; one of them may be larger."""
    rows = [
        make_row("", "Model", None, 300 * number, 2_000_000 * number, own_parameters=0),
        make_row(
            "h",
            "ModuleList",
            0,
            300 * number,
            2_000_000 * number,
            calls=0,
            output_shapes=None,
            input_bytes=None,
            own_parameters=0,
        ),
    ]
    for block in range(number):
        extra = 5 if block == odd else 0
        at = len(rows)
        rows.append(make_row(f"h.{block}", "Block", 1, 300, 2_000_000, own_parameters=0))
        rows += [make_row(f"h.{block}.{name}", "Linear", at, 150 + extra, 1_000_000) for name in ("up", "down")]
    return make_report(*rows)


def list_names(report: ModuleReport, *, fold: bool) -> list[tuple[str, int]]:
    return [(name, len(branch.rows)) for _, name, branch in walk_tree(grow_tree(report.rows, fold=fold))]


def test_identical_siblings_fold_and_unfold() -> None:
    assert list_names(make_blocks(12), fold=True) == [
        ("", 1), ("h", 1), ("h.0-11", 12), ("h.0-11.up", 12), ("h.0-11.down", 12),
    ]  # fmt: skip
    assert len(list_names(make_blocks(12), fold=False)) == 2 + 12 * 3
    parts = [name for name, _ in list_names(make_blocks(12, odd=5), fold=True)]
    assert parts[2::3] == ["h.0-4", "h.5", "h.6-11"]


def show(report: ModuleReport, width: int, **options: object) -> str:
    console = Console(width=width, record=True, force_terminal=False)
    render_sections("Model", list_module_sections(report, **options), console)  # type: ignore[arg-type]
    return console.export_text()


def find_line(text: str, start: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(start))
    return line.split()


def test_a_folded_row_adds_up_and_shares_are_of_the_whole() -> None:
    text = show(make_blocks(12), 200)
    assert find_line(text, "0-11 (12 x)")[3:] == [
        "Block", "3,600", "100.0", "%", "12.00", "M", "100.0", "%", "24.00", "M", "768", "B",
        "240.0", "ms", "480.0", "ms", "100.0", "%", "100.0", "MFLOP/s",
    ]  # fmt: skip
    assert find_line(text, "up (12 x)")[3:7] == ["Linear", "1,800", "50.0", "%"]
    assert "\n    0-11 (12 x)" in text and "\n      up (12 x)" in text  # indented by depth
    assert "24.00 M multiply-adds, counted, 2.0 times forward" in text
    assert find_line(text.split("Layers")[1], "Linear      3  h.0-11.up")[4:6] == ["1,800", "12"]


def test_it_fits_every_width_and_depth_cuts() -> None:
    for width in (80, 120, 200):
        for report in (make_blocks(3), make_blocks(3, odd=1)):
            assert max(map(len, show(report, width).splitlines())) <= width
    assert "up (12 x)" not in show(make_blocks(12), 200, depth=2).split("Layers")[0]
    assert "h.0-11" in show(make_blocks(12), 200, fold=True) and "h.7.down" in show(make_blocks(12), 200, fold=False)


def test_what_was_not_measured_is_not_shown_as_zero() -> None:
    unknown = {"self_time": Taken(), "total_time": Taken(), "activation_bytes": None, "self_activation_bytes": None}
    rows = [structs.replace(row, **unknown) for row in make_blocks(1).rows]  # type: ignore[arg-type]
    text = show(make_report(*rows, timed_passes=0), 200)
    assert not any(word in text for word in ("forward time", "of time", "FLOP/s", "activations", " 0 B"))


def test_names_from_a_model_stay_text() -> None:
    row = make_row("", "Evil\x1b[31m[bold]\n", None, 1, 2)
    text = show(make_report(row), 120)
    assert "\x1b" not in text and "[bold]" in text and json.loads(json.dumps(make_report(row).to_json()))["rows"]


def test_what_two_modules_share_is_a_share_of_the_model_once() -> None:
    report = make_report(
        make_row("", "Model", None, 100, 300, own_parameters=0), make_row("table", "Embedding", 0, 90, 0),
        make_row("body", "Linear", 0, 10, 100), make_row("head", "Linear", 0, 90, 200, own_parameters=0),
    )  # fmt: skip
    (depths,) = [section for section in list_module_sections(report) if section.key == "module_depths"]
    texts = [column.cells for column in depths.columns]
    assert texts[2] == ("Embedding 90.0 %, Linear 10.0 %",) and texts[3] == ("Linear 100.0 %",)
