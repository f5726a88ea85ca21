"""Keeps secrets out of captures: nsys writes environments and command lines into its report.

Not only those of the job: nsys copies the environment of every process that it may read. If another process holds keys,
such as the shell from which the job was started or the first process of a container, the job gets its own process
namespace, in which nsys sees no others.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from distprof.config.redact import MASK, MIN_SECRET_LENGTH, find_secrets, is_secret_name
from distprof.errors import UsageError

_SECRET_WORDS = re.compile(
    r"(^|_)(auth|cookie|cred|creds|credentials?|jwt|keys?|pass|passphrase|passwd|password|pat|secrets?|tokens?)(_|$)",
    re.I,
)
"""Stricter than `is_secret_name`: leaving out one variable too many costs less than writing a key."""
_NAMED = re.compile(r"(?<![\w./-])([\w./-]*\w)['\"]?\s*(?:=|:(?!//))\s*(?=[^\s,}])")
"""The names in ``a.b=c``, ``-e A=b,C=d`` and ``{a: b, c: d}`` that have a value."""
_NEVER_SECRET = frozenset(
    ("PATH", "HOME", "PWD", "PYTHONPATH", "LD_LIBRARY_PATH", "SHELL", "SSH_AUTH_SOCK", "TMPDIR", "USER")
)
_TRY_TIMEOUT_S = 10.0
_RUN = '"$@"; exit $?'  # two commands, so that the shell stays as the first process of the namespace


def clean_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment without anything that may be secret, and the names of the variables left out.

    A variable is left out because of its name, or because its value is or contains a secret: a login in a URL, a key
    of a known form, JSON with a password, the value of a variable left out by name.
    """
    secrets = _list_secret_values(environment)
    dropped = tuple(
        sorted(
            name
            for name, value in environment.items()
            if name not in _NEVER_SECRET
            and (_may_be_secret(name) or find_secrets(value) or any(secret in value for secret in secrets))
        )
    )
    return {name: value for name, value in environment.items() if name not in dropped}, dropped


def refuse_secrets(arguments: Iterable[str], environment: Mapping[str, str]) -> None:
    """Refuses a command line that would bring a secret into the report.

    Raises:
        UsageError: An argument names a secret, has the form of one, has a login in a URL, or contains the value of a
            secret variable.
    """
    values = _list_secret_values(environment)
    named_by_value = {value: name for name, value in environment.items() if value in values}
    remedy = "nsys would write it into its report: leave it out, or let the program read it from a file"
    for argument in arguments:
        names = _NAMED.findall(argument)
        if (secret := next(filter(is_secret_name, names), None)) is not None:
            raise UsageError(f"{secret}: contains a secret, and {remedy}")
        if find_secrets(argument):
            raise UsageError(f"{names[0] if names else 'an argument'}: a URL with a login, or a key, and {remedy}")
        if (held := next((name for value, name in named_by_value.items() if value in argument), None)) is not None:
            raise UsageError(f"an argument contains the value of {held}, and {remedy}")


class Neighbour(Struct, frozen=True, kw_only=True):
    """A process with secrets in its environment."""

    pid: int
    name: str
    variables: tuple[str, ...]


def find_neighbours(proc: Path = Path("/proc")) -> list[Neighbour]:
    """The processes with secrets in an environment that this user may read, ordered by process id."""
    found = []
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # another user's, or it has ended
                dropped = clean_environment(_read_block((folder / "environ").read_bytes().decode(errors="replace")))[1]
                if dropped:
                    name = (folder / "comm").read_text(errors="replace").strip()
                    found.append(Neighbour(pid=int(folder.name), name=name, variables=dropped))
    return sorted(found, key=lambda each: each.pid)


def probe_isolation() -> list[str] | None:
    """The command prefix that hides other processes. None: this user, or this machine, does not allow it.

    Process ids differ inside; devices, files, network and shared memory are the same.
    """
    wall = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        wall += ["--user", "--map-current-user"]
    wall += ["/bin/sh", "-c", _RUN, "sh"]
    try:
        tried = subprocess.run([*wall, "true"], capture_output=True, timeout=_TRY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return wall if tried.returncode == 0 else None


def describe(neighbours: Sequence[Neighbour], limit: int = 3) -> str:
    """Which processes hold which variables: ``bash (pid 12): HF_TOKEN``."""
    named = [f"{each.name} (pid {each.pid}): {', '.join(each.variables)}" for each in neighbours[:limit]]
    more = len(neighbours) - limit
    return "; ".join(named) + (f"; and {more} more" if more > 0 else "")


def mask_secrets(export: Path) -> tuple[str, ...]:
    """Masks the secrets in the environments in an export, in place.

    Args:
        export: An SQLite export; its strings are untrusted.

    Returns:
        The names of the masked variables.

    Raises:
        sqlite3.Error: It cannot be read or written.
    """
    masked: set[str] = set()
    with contextlib.closing(sqlite3.connect(export)) as base:
        base.execute("PRAGMA trusted_schema = OFF")
        base.execute("PRAGMA secure_delete = ON")  # otherwise the old bytes stay in the file
        blocks = base.execute("SELECT rowid, value FROM StringIds WHERE instr(value, char(0)) > 0").fetchall()
        for row, text in blocks:
            variables = _read_block(str(text))
            dropped = clean_environment(variables)[1]
            if dropped:
                masked.update(dropped)
                kept = {**variables, **dict.fromkeys(dropped, MASK)}
                block = "\0".join(f"{name}={value}" for name, value in kept.items())
                base.execute("UPDATE StringIds SET value = ? WHERE rowid = ?", (block, row))
        base.commit()
    return tuple(sorted(masked))


def _read_block(block: str) -> dict[str, str]:
    """An environment in the kernel's format."""
    return {name: value for name, _, value in (entry.partition("=") for entry in block.split("\0")) if name}


def _list_secret_values(environment: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        value for name, value in environment.items() if is_secret_name(name) and len(value) >= MIN_SECRET_LENGTH
    )


def _may_be_secret(name: str) -> bool:
    return is_secret_name(name) or bool(_SECRET_WORDS.search(name))
