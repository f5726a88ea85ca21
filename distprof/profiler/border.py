"""The border between distprof and a training that must not notice it: errors stop here, and sentences are said once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from distprof.errors import describe_error


class Border:
    """What may fail behind it costs a sentence, and never training."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Takes what says a line to the user."""
        self._say = say
        self.told: list[str] = []
        """What was said or noted, once each."""

    def tell(self, text: str, *, everywhere: bool = False) -> None:
        """Says a sentence once, and keeps it as a note of the rank.

        Args:
            text: What was done wrong, or does not work.
            everywhere: On every rank, not on rank 0 only.
        """
        if text not in self.told and (everywhere or os.environ.get("RANK", "0") == "0"):
            self._say(f"distprof: {text}")
        self.note(text)

    def note(self, text: str) -> None:
        """Keeps a note of the rank, once."""
        if text not in self.told:
            self.told.append(text)
            self._keep(text)

    def _keep(self, text: str) -> None:
        """Keeps a note for the report."""

    def _guard(self, what: str, work: Callable[..., Any], *arguments: Any) -> bool:
        """Does what must not fail for the user; returns whether it did not."""
        try:
            work(*arguments)
        except Exception as error:
            self._lose(what, error)
            return False
        return True

    def _lose(self, what: str, error: Exception) -> None:
        """Says what was lost to an error that stops here."""
        with contextlib.suppress(Exception):  # the sentence is lost too
            self.tell(f"{what} was not recorded: {describe_error(error)}", everywhere=True)
