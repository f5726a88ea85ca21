"""Keeps secrets out of captures: nsys writes the job's environment and command line into its report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from distprof.config.redact import MIN_SECRET_LENGTH, find_secrets, is_secret_name
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


def clean_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment without anything that may be secret, and the names of the variables left out.

    A variable is left out because of its name, or because its value is or contains a secret: a login in a URL, a key
    of a known form, JSON with a password, the value of a variable left out by name.
    """
    secrets = _find_values(environment)
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
    values = _find_values(environment)
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


def _find_values(environment: Mapping[str, str]) -> frozenset[str]:
    return frozenset(
        value for name, value in environment.items() if is_secret_name(name) and len(value) >= MIN_SECRET_LENGTH
    )


def _may_be_secret(name: str) -> bool:
    return is_secret_name(name) or bool(_SECRET_WORDS.search(name))
