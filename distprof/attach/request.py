"""What a command line of ``python -m distprof.attach`` asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distprof.errors import UsageError

USAGE = """\
usage: python -m distprof.attach [NAME=VALUE ...] [--] SCRIPT [ARGUMENTS ...]
       python -m distprof.attach [NAME=VALUE ...] [--] -m MODULE [ARGUMENTS ...]
       torchrun --nproc-per-node 4 -m distprof.attach SCRIPT [ARGUMENTS ...]

Runs the script as Python does, unchanged, and writes a report of what each rank did.
NAME=VALUE: name=, run_dir=, runs_dir=, and the options of conf/profile/, such as profile.level=off
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to run, and how to watch it."""

    options: dict[str, object]
    """For `distprof.start`; ``name`` may be among them."""
    target: str
    """A script, or the name of a module."""
    is_module: bool
    arguments: tuple[str, ...]
    """The script's own."""

    @property
    def name(self) -> str:
        """What the run is called unless an option says so."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem


def read_request(arguments: Sequence[str]) -> Request | None:
    """Reads a command line. None: it asks for help.

    Raises:
        UsageError: It names no script, or an override is not of the form name=value.
    """
    options: dict[str, object] = {}
    rest = list(arguments)
    while rest and rest[0] not in ("--", "-m"):
        name, equals, value = rest[0].partition("=")
        if rest[0] in ("-h", "--help"):
            return None
        if not equals or not name.replace(".", "_").isidentifier():
            break  # the script: some launchers remove the "--"
        options[name.removeprefix("profile.")] = _read_value(value)
        rest.pop(0)
    if rest and rest[0] == "--":
        rest.pop(0)
    is_module = bool(rest) and rest[0] == "-m"
    if is_module:
        rest.pop(0)
    if not rest:
        raise UsageError("no script to run: python -m distprof.attach [name=value ...] -- SCRIPT [ARGUMENTS ...]")
    if not is_module and rest[0].startswith("-"):
        raise UsageError(f"{rest[0]}: not an option of distprof.attach; those of the script come after its name")
    return Request(options=options, target=rest[0], is_module=is_module, arguments=tuple(rest[1:]))


def _read_value(text: str) -> object:
    try:
        value: object = json.loads(text)
    except ValueError:
        listed = text[1:-1] if text[:1] + text[-1:] == "[]" else None  # [a,b], as Hydra takes it
        return text if listed is None else [item.strip() for item in listed.split(",")]
    return value if isinstance(value, (bool, int, float, list)) or value is None else text
