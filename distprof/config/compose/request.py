"""Parses the command line of a training job: Hydra's flags, and the overrides according to its grammar."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from typing import NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from msgspec import Struct

from distprof.errors import UsageError

HELP = "python -m distprof --help"
_PLAIN = re.compile(r"([^=]+)=([^=,\[{'\"][^,]*)", re.S)
"""A key and one text: no list, no quotes, and no sweep."""


class JobRequest(Struct, frozen=True, kw_only=True):
    """What a command line asks for."""

    flags: argparse.Namespace
    """Hydra's flags under its own names, including the overrides."""
    parser: argparse.ArgumentParser

    @property
    def shows_only(self) -> bool:
        """Whether a configuration is only shown, without training."""
        flags = self.flags
        return bool(flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion)


def read_request(arguments: Sequence[str]) -> JobRequest:
    """Parses a command line. Nothing is composed yet, and no file is read.

    Raises:
        UsageError: There is an unknown flag, flags that exclude each other, or an argument that is not an override.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    flags, unknown = parser.parse_known_args(list(arguments))
    if unknown:
        raise UsageError(f"unknown option {unknown[0].partition('=')[0]}; see {HELP}")
    if flags.experimental_rerun is not None:
        raise UsageError("--experimental-rerun: reads a pickle, which can run any code; give the overrides again")
    if flags.resolve and not (flags.cfg or flags.help):
        raise UsageError("--resolve: only works with --cfg or --help")
    if flags.run + flags.multirun + bool(flags.cfg) + bool(flags.info) + flags.shell_completion > 1:
        raise UsageError("--run, --multirun, --cfg, --info, --shell-completion: give only one of them")
    for text in flags.overrides:
        if "=" not in text and not text.startswith("~"):
            raise UsageError(f"{text}: expected KEY=VALUE, or a verb such as report before it; see {HELP}")
    flags.overrides = [text if flags.shell_completion else quote(text) for text in flags.overrides]
    return JobRequest(flags=flags, parser=parser)


def _refuse(message: str) -> NoReturn:
    raise UsageError(f"{message}; see {HELP}")


def quote(override: str) -> str:
    """Quotes an override's value that Hydra's grammar cannot read, such as a path with non-ASCII letters.

    Readable values stay unchanged, and so does what may be a list or a sweep. ``~/`` is the home folder.
    """
    plain = _PLAIN.fullmatch(override)
    if plain is None or _can_be_read(override):
        return override
    value = os.path.expanduser(plain[2]) if plain[2].startswith("~/") else plain[2]
    value = re.sub(r"(?<!\\)(\\*+)(?='|$)", r"\1\1", value).replace("'", "\\'")  # special only before a quote
    quoted = f"{plain[1]}='{value}'"
    return quoted if _can_be_read(quoted) else override


def quote_text(value: str) -> str:
    """A text as Hydra's grammar reads it, whatever is in it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _can_be_read(override: str) -> bool:
    try:
        OverridesParser.create().parse_override(override)
    except (HydraException, ValueError, TypeError):
        return False
    return True
