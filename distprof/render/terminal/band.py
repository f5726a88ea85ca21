"""A band at the bottom of a terminal that others write to as well: what they print scrolls above it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LEAST_ABOVE = 6
"""Lines that are left to the others."""
LEAST_BAND = 10
_SAVE, _RESTORE = "\x1b7", "\x1b8"


class Band:
    """The terminal's margins keep the others above the band, which begins at the last line and grows upwards.

    A live display of one process that moves the cursor back over its own lines would overwrite what another process,
    such as another rank, has printed below them in the meantime. Each drawing is a single write, so that nothing comes
    between its begin, where the cursor is saved, and its end, where the cursor is again where the others write.
    """

    def __init__(self, write: Callable[[str], object], measure: Callable[[], tuple[int, int]]) -> None:
        """Draws nothing yet.

        Args:
            write: Writes a text to the terminal at once.
            measure: The terminal's columns and lines.
        """
        self._write, self._measure = write, measure
        self._size, self._height = (0, 0), 0

    def draw(self, lines: Sequence[str]) -> None:
        """Shows lines, none of them wider than the terminal; of too many, the first."""
        size = self._measure()
        shown = lines[: max(size[1] - LEAST_ABOVE, 0)]
        text = ""
        if size != self._size:  # below the cursor is nothing but the band as it was
            text += f"{_SAVE}\x1b[r{_RESTORE}\x1b[J" if self._height else ""
            self._size, self._height = size, 0
        if (more := len(shown) - self._height) > 0:
            self._height = len(shown)
            room = "\x1bD" * more + f"\x1b[{more}A"  # below the cursor, whose column stays
            text += f"{room}{_SAVE}\x1b[1;{size[1] - self._height}r{_RESTORE}"
        first = size[1] - self._height + 1
        rows = [*shown, *[""] * (self._height - len(shown))]
        drawn = "".join(f"\x1b[{first + index};1H\x1b[2K{row}\x1b[m" for index, row in enumerate(rows))
        self._write(f"{text}{_SAVE}\x1b[?7l{drawn}\x1b[?7h{_RESTORE}")

    def close(self) -> None:
        """Gives the terminal back as it was, without the band."""
        if self._height:
            first = self._size[1] - self._height + 1
            self._write(f"{_SAVE}\x1b[{first};1H\x1b[J\x1b[r{_RESTORE}")
            self._height = 0


def has_room(columns: int, lines: int) -> bool:
    """Whether a terminal is large enough for a band."""
    return columns >= 40 and lines >= LEAST_ABOVE + LEAST_BAND
