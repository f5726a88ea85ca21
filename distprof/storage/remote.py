"""Files behind fsspec URLs, such as ``s3://bucket/run/``: listed, fetched to a disk, and results put there.

Readers work on files of this machine: what a URL names is copied to a temporary folder first, wherever it is read. How
to log in is for the backend's own configuration to say (environment variables, fsspec's configuration), not for a URL.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from distprof.error_boundary import ErrorBoundary
from distprof.errors import DataError, DistprofError, UsageError
from distprof.storage.safe_open import USUAL_LIMITS

_URL = re.compile(r"[a-z][a-z0-9+.-]*(::[a-z][^/]*)?://", re.IGNORECASE)
_LOCAL = ("file://", "local://")
_LOGIN = re.compile(r"(?<=://)[^/@]*@")
_CHUNK_BYTES = 8 << 20
MAX_LISTED = 100_000


class Url(Struct, frozen=True):
    """Where a file or a folder is, if not in the file system of this machine."""

    text: str

    def __str__(self) -> str:
        """For messages and reports: without a login and, over HTTP, without what signs a request."""
        text = _LOGIN.sub("", self.text)
        return text.partition("?")[0] if text.startswith("http") else text

    @property
    def name(self) -> str:
        """The last part."""
        return str(self).rstrip("/").rpartition("/")[2]


Place = Path | Url


def read_place(text: str) -> Place:
    """A path or a URL, as a user types it; for `argparse`."""
    if (start := next((start for start in _LOCAL if text.startswith(start)), None)) is not None:
        return Path(text.removeprefix(start))
    return Url(text) if _URL.match(text) else Path(text)


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file that a URL names, or that lies below it."""

    url: Url
    below: str
    """Its path below the folder that was asked for; empty: it was asked for itself."""
    size_bytes: int


def list_remote(url: Url, depth: int | None = 2) -> tuple[bool, list[RemoteFile]]:
    """Whether the URL names a folder or a pattern, and its files by name; a file is its own list.

    Args:
        url: The place.
        depth: How far below it files may lie. None: anywhere.

    Raises:
        DistprofError: It cannot be reached, or does not exist.
    """
    with _reach(url) as (system, path):
        if "*" in path:
            found = system.glob(path, detail=True)
        elif (info := system.info(path))["type"] == "file":
            return False, [RemoteFile(url=url, below="", size_bytes=int(info.get("size") or 0))]
        else:
            found = system.find(path, maxdepth=depth, detail=True)
        start = path.rstrip("/") + "/"
        files = [(name, info) for name, info in sorted(found.items()) if info["type"] == "file"]
        return True, [
            RemoteFile(
                url=Url(system.unstrip_protocol(name)), below=name.removeprefix(start),
                size_bytes=int(info.get("size") or 0),
            )
            for name, info in files[:MAX_LISTED]
        ]  # fmt: skip


def fetch_file(url: Url, into: Path, max_bytes: int = USUAL_LIMITS.max_bytes) -> None:
    """Copies a file to this machine.

    Raises:
        DistprofError: It cannot be reached, does not exist, or is too large.
    """
    with _reach(url) as (system, path), system.open(path, "rb") as file, open(into, "xb") as copy:
        left = max_bytes
        while chunk := file.read(_CHUNK_BYTES):
            left -= len(chunk)
            if left < 0:
                raise DataError(f"{url}: more than the limit of {max_bytes:,} bytes")
            copy.write(chunk)


def put_files(folder: Path, url: Url) -> None:
    """Copies the files in a folder to a URL.

    Raises:
        DistprofError: It cannot be reached.
    """
    with _reach(url) as (system, path):
        system.makedirs(path, exist_ok=True)
        for file in sorted(folder.iterdir()):
            system.put_file(str(file), f"{path.rstrip('/')}/{file.name}")


@contextlib.contextmanager
def _reach(url: Url) -> Iterator[tuple[Any, str]]:
    """The file system behind a URL and the path in it. Backends raise errors of all kinds; here each is one line."""
    said: list[str] = []
    refused: DistprofError | None = None
    with ErrorBoundary(f"{url}: cannot be reached", said.append):
        try:
            from fsspec.core import url_to_fs  # takes as long as reading a small trace

            yield url_to_fs(url.text)
        except DistprofError as error:
            refused = error
        except ImportError as error:
            refused = UsageError(f"{url}: a package for such URLs is missing: {error}")
        except FileNotFoundError:
            refused = DataError(f"{url}: no such file or folder")
    if refused is not None:
        raise refused
    if said:
        raise DataError(said[0])
