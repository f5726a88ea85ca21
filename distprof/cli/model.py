"""The verb ``model``: the parameters, the work and the memory of a model's modules, without training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from distprof.cli.options import add_number, add_width, write_figures, write_into
from distprof.errors import EXIT_OK, EXIT_PARTIAL
from distprof.render.files.column_files import NO_PARQUET, can_write_parquet, list_writers
from distprof.render.files.files import write_each
from distprof.render.files.module_files import list_profile_columns
from distprof.render.sections.module_sections import NOTE_LIMIT, TOP, list_module_sections
from distprof.render.sections.section_types import Section, make_columns
from distprof.render.terminal.terminal import render_sections
from distprof.render.units import clean_text, format_bytes
from distprof.report.module_report import ModuleReport

if TYPE_CHECKING:
    from distprof.cli.model_target import Inside

MAX_UNITS = 4

DESCRIPTION = """\
Shows what is inside a model: for every module its parameters, its multiply-adds in forward and, counted as well, in
backward, what it keeps for backward, its output; and how much memory a rank would need to train it. Nothing is
computed or allocated, so that models can be looked at that fit on no machine; --measure runs the model here instead,
and takes the time.

The model is either distprof's own, as the configuration of a training job describes it, or what a function of yours
returns.
"""
EPILOG = """\
examples:
  distprof model train=gpt2_small train.seq_len=1024 strategy=fsdp ranks=64
  distprof model train=gpt2_tiny --measure
  distprof model my_package.models:build --input int64:4x128
  distprof model my_package.models:build --input images=float32:8x3x224x224 \\
      --mode forward --depth 2 --json model.json

  a 70 B Llama under FSDP2 on 64 ranks; docs/modules.md shows llama.py:
  distprof model llama:build strategy=fsdp ranks=64 train.precision=bf16 \\
      --input input_ids=int64:1x8192 --input labels=int64:1x8192 --depth 3

A function is your own code: it is imported from the current folder or an installed package, and called without
arguments. It returns the model, or the model and its inputs: a tensor, a tuple by position, or a dictionary by name.
strategy=single|ddp|fsdp, strategy.replicas=N, ranks=N, train.precision=fp32|bf16|fp16 and train.mode=forward say how
it is trained; bf16 is autocast, and under fsdp the format in which parameters are gathered.

Operations are counted by torch's own formulas (matrix products, convolutions, attention); a multiply-add is two FLOPs.
Element-wise work does not count.

--out FOLDER writes modules.csv and, with the extra distprof[parquet], modules.parquet: one row per module, all digits.

Exit codes: 0 shown, 1 the model cannot be built or run, 2 usage, 3 shown without work and activations, because the
model asks for values that are not computed, or a file of --out could not be written.
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's options."""
    parser.add_argument(
        "target", nargs="+", metavar="PACKAGE.MODULE:FUNCTION | OVERRIDE",
        help="what builds the model, overrides of a training job's configuration, and ranks=N",
    )  # fmt: skip
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]DTYPE:SHAPE",
        help="a tensor that the function's model is given, such as int64:4x128; may be repeated",
    )  # fmt: skip
    parser.add_argument("--mode", choices=("forward", "forward_backward"), help="(default: with backward)")
    parser.add_argument("--measure", action="store_true", help="run the model here, and take the time")
    add_number(
        parser, "--passes", least=1, default=3, metavar="N", help="with --measure: number of timed passes (default: 3)"
    )
    add_number(parser, "--depth", least=0, metavar="N", help="show modules down to this depth (default: all)")
    add_number(
        parser, "--top", least=1, default=TOP, metavar="K", help=f"classes to name at each depth (default: {TOP})"
    )
    parser.add_argument("--unfold", action="store_true", help="show each of several identical modules")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole profile there, too")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the table of modules there, as CSV and Parquet"
    )
    add_width(parser)


def run(options: argparse.Namespace) -> int:
    """Builds, counts, measures where asked, and shows.

    Raises:
        DistprofError: The model cannot be built or run, or an option is wrong.
    """
    from distprof.cli.model_target import look_inside  # loads torch: not needed for --help

    found = look_inside(
        options.target, inputs=options.input, mode=options.mode, passes=options.passes if options.measure else None
    )
    sections = list_module_sections(found.report, depth=options.depth, top=options.top, fold=not options.unfold)
    title = f"{clean_text(found.report.model)}, given {found.report.inputs}, on {found.report.device}"
    render_sections(title, [*sections, _show_memory(found)], Console(width=options.width))
    if options.json is not None:
        write_figures(options.json, {**found.report.to_json(), "memory_bytes": found.memory})
        print(f"written: {options.json}")
    whole = options.out is None or _write_tables(options.out, found.report)
    if found.failure:
        print(f"distprof: work and activations are not known: {clean_text(found.failure, NOTE_LIMIT)}", file=sys.stderr)
    return EXIT_OK if whole and not found.failure else EXIT_PARTIAL


KIND_WORDS = {
    "optimizer": "optimizer state", "returned": "outputs", "working": "backward's own",
    "communication": "communication buffers",
}  # fmt: skip
KIND_ORDER = (
    "parameters", "gradients", "optimizer", "buffers", "inputs", "activations", "returned", "working", "communication",
    "total",
)  # fmt: skip


def _show_memory(found: Inside) -> Section:
    memory = found.memory
    heads = ["kind", *("every rank" if rank == "every" else f"rank {rank}" for rank in memory)]
    rows = [
        (KIND_WORDS.get(kind, kind), *(format_bytes(of_rank[kind]) for of_rank in memory.values()))
        for kind in KIND_ORDER
        if kind != "total" or all(of_rank["total"] is not None for of_rank in memory.values())
    ]
    return Section(
        key="module_memory", title="Memory of a rank", about="of one micro-batch and AdamW, predicted",
        columns=make_columns(heads, rows, ("kind",)), notes=tuple(_list_memory_notes(found)),
    )  # fmt: skip


def _list_memory_notes(found: Inside) -> Iterator[str]:
    first = next(iter(found.memory.values()))
    if lacking := [KIND_WORDS.get(kind, kind) for kind in KIND_ORDER if kind != "total" and first[kind] is None]:
        yield f"no total, because not everything is known: {', '.join(lacking)}"
    else:
        yield "total: everything at its most, which is never all at once; a kernel's own work space is not in it"
    if first["activations"] is not None:
        yield "activations: what the kernels of a CPU keep; a GPU's fused attention keeps as much, its dropout less"
        yield "outputs: what forward returns and backward does not need, as long as the script holds it"
        yield "backward's own: gradients of activations, and what is recomputed"
    if found.units:
        yield f"communication buffers: FSDP2 gathers {_name_units(found.units)} each by itself, and the rest at once"


def _name_units(names: Sequence[str]) -> str:
    """``model.layers.0-79``: as many as have consecutive numbers in one list."""
    lists: dict[str, list[str]] = {}
    for name in names:
        place, _, last = name.rpartition(".")
        lists.setdefault(place if last.isdecimal() else name, []).append(last if last.isdecimal() else "")
    ordered = {place: sorted(each, key=lambda number: (len(number), number)) for place, each in lists.items()}
    shown = [
        clean_text(".".join(filter(None, (place, "-".join(dict.fromkeys((each[0], each[-1])))))))
        for place, each in sorted(ordered.items())
    ]
    return ", ".join(shown[:MAX_UNITS]) + (f" and {len(shown) - MAX_UNITS} more" if len(shown) > MAX_UNITS else "")


def _write_tables(folder: Path, report: ModuleReport) -> bool:
    """Whether all of them were written."""
    writers = list_writers({"modules": list_profile_columns(report)})
    written = write_into(folder, lambda into: write_each(into, writers))
    if written.names:
        print(f"written: {', '.join(written.names)}" + ("" if can_write_parquet() else f"; {NO_PARQUET}"))
    return written.whole
