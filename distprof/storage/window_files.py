"""How a kernel window is asked for while a job runs, and what rank 0 answers: two small files in the run folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import Literal

from msgspec import Struct

from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.facts.plain import make_plain
from distprof.storage.run_folder import kernel_path
from distprof.storage.whole_file import read_object, write_json

REQUEST, STATE = "window.request", "window.state"
SCHEMA = "distprof.window/1.0"
MAX_BYTES = 1 << 20
MAX_STEPS = 1000
"""Most steps of a window: a trace holds every kernel of every step."""


class WindowRequest(Struct, frozen=True, kw_only=True):
    """What a user asks of a running job."""

    id: str
    """Chosen by whoever asks, so that the answer can be matched to the request."""
    steps: int | None
    """Steps to keep. None: as ``profile.kernel_steps`` says."""


class WindowState(Struct, frozen=True, kw_only=True):
    """What rank 0 has done about it."""

    id: str
    state: Literal["taken", "agreed", "ended", "refused"]
    """taken: the ranks are to agree on a step. agreed: it begins with that step. ended, refused: nothing follows."""
    steps: tuple[int, ...] = ()
    """The steps that it keeps, once they are agreed on."""
    folder: str = ""
    """Where the traces are, inside the run folder."""
    text: str = ""
    """Why it was refused."""
    missing: tuple[str, ...] = ()
    """Once it has ended: the ranks without a trace, and why."""


def window_folder(folder: Path, first_step: int) -> Path:
    """Where the traces of a window lie that was asked for while the job ran, by the first step that it keeps."""
    return folder / "kernels" / f"step-{first_step:08d}"


def window_path(folder: Path, rank: int, first_step: int) -> Path:
    """The path of a rank's trace in it."""
    return window_folder(folder, first_step) / kernel_path(folder, rank).name


def publish_request(folder: Path, request: WindowRequest) -> bool:
    """Asks; False: somebody else has, and has not been heard yet. The file is there whole or not at all.

    Raises:
        OSError: The folder cannot be written.
    """
    temporary = folder / f".{REQUEST}.{secrets.token_hex(4)}"
    write_json(temporary, {"schema": SCHEMA, **make_plain(request)})
    try:
        return _put_in_place(temporary, folder / REQUEST)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _put_in_place(temporary: Path, path: Path) -> bool:
    """Gives a file its name; False: there is such a file."""
    try:
        os.link(temporary, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if os.path.exists(path):
            return False
        os.replace(temporary, path)
    return True


def withdraw_request(folder: Path, request: WindowRequest) -> None:
    """Asks no longer, if nobody has heard it yet."""
    with contextlib.suppress(DataError, OSError):
        if read_request(folder).id == request.id:
            (folder / REQUEST).unlink()


def read_request(folder: Path) -> WindowRequest:
    """What is asked for.

    Raises:
        DataError: Nothing is, or the file makes no sense.
    """
    path = folder / REQUEST
    request = decode(WindowRequest, _read(path), str(path), DataError)
    if request.steps is not None and not 1 <= request.steps <= MAX_STEPS:
        raise DataError(f"{path}: steps={request.steps}: must be 1 to {MAX_STEPS}")
    return request


def read_state(folder: Path) -> WindowState | None:
    """What rank 0 has answered last. None: nothing so far.

    Raises:
        DataError: The file makes no sense.
    """
    path = folder / STATE
    if not os.path.exists(path):
        return None
    return decode(WindowState, _read(path), str(path), DataError)


def write_state(folder: Path, state: WindowState) -> None:
    """Answers.

    Raises:
        OSError: The folder cannot be written.
    """
    write_json(folder / STATE, {"schema": SCHEMA, **make_plain(state)})


def _read(path: Path) -> dict[str, object]:
    values = read_object(
        path, schema=SCHEMA, what="file", missing=f"{path}: no such file", max_bytes=MAX_BYTES,
    )  # fmt: skip
    return {key: value for key, value in values.items() if key != "schema"}
