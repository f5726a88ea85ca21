"""A program to be watched, and by hand what is to be found in it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from msgspec import Struct

PROGRAMS = Path(__file__).resolve().parent / "programs"


class ForeignProgram(Struct, frozen=True, kw_only=True):
    """One program on two ranks."""

    name: str
    command: str
    """A file of `PROGRAMS` or ``-m MODULE``, and arguments."""
    loop: str
    """Whose training loop it is."""
    steps: int
    """On each rank."""
    phases: str
    """Those that take time in measured steps, without the remainder; and stretches between steps."""
    module: str | None
    """Class of the module that is slowed down, and which of this class in the order of their first calls."""
    named: str = ""
    """Name of that module in the model."""
    has_loader: bool = True
    """Whether batches come from a DataLoader, whose dataset can be slowed down."""
    trains: bool = True
    jobs: int = 1
    """Reports that there are to be: 2 if the script makes no process group."""
    delay_ms: float = 25
    needs: str = ""
    """Packages beside torch."""

    @property
    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.needs.split() if importlib.util.find_spec(name) is None]

    @property
    def words(self) -> list[str]:
        """The command line, after ``python`` or ``python -m distprof.attach``."""
        first, *rest = self.command.split()
        return [first, *rest] if first == "-m" else [str(PROGRAMS / first), *rest]
