"""Small files: written such that they are there complete or not at all, and JSON objects read back without trust."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from distprof.config.decode import load_json, require_flat
from distprof.errors import DataError
from distprof.storage.safe_open import open_file, require_own


def write_whole(path: Path, data: bytes | str | Iterable[bytes]) -> None:
    """Writes a file atomically: it is there complete or not at all. Of parts, one is held at a time."""
    parts = (data.encode(),) if isinstance(data, str) else (data,) if isinstance(data, bytes) else data
    require_own(path)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less what umask says
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def encode_json(value: object) -> str:
    """Strict JSON as a file holds it."""
    text = json.dumps(value, allow_nan=False)  # the part of Python that indents takes twice as long
    return msgspec.json.format(text, indent=1) + "\n"


def write_json(path: Path, value: object) -> None:
    """Writes strict JSON atomically."""
    write_whole(path, encode_json(value))


def read_object(
    path: Path, *, schema: str, what: str, missing: str, max_bytes: int, inside: int | None = None
) -> dict[str, Any]:
    """Reads the object.

    Args:
        path: The file.
        schema: Of this version, such as ``distprof.run/1.0``; those with the same major version are accepted.
        what: What is damaged if it is no JSON.
        missing: The error if there is no such file.
        max_bytes: Largest size accepted.
        inside: Descriptor of the containing folder; links are then not followed.

    Raises:
        DataError: It is missing, damaged, or of another major version.
    """
    try:
        with open_file(path, inside=inside, max_bytes=max_bytes) as file:
            values: Any = load_json(file.read(max_bytes))
        require_flat(values)
    except FileNotFoundError:
        raise DataError(missing) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}): the {what} is damaged") from None
    if not isinstance(values, dict) or not str(values.get("schema")).startswith(schema.rpartition(".")[0] + "."):
        raise DataError(f"{path}: not written by this major version of distprof (expected {schema})")
    return values
