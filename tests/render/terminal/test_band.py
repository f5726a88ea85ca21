"""The band below what a job prints, on a terminal that does what a VT100 does with the sequences in use."""

from __future__ import annotations

import random
import re

import pytest

from distprof.render.terminal.band import LEAST_ABOVE, Band, has_room

TOKEN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b([78D])|([\r\n])|([^\x1b\r\n])")


class Terminal:
    """Cursor, margins, and what has scrolled off the top. Lines and columns count from 0."""

    def __init__(self, columns: int, lines: int) -> None:
        self.gone: list[str] = []
        self.saved = (0, 0)
        self.row = self.column = 0
        self.rows: list[str] = []
        self.resize(columns, lines)

    def resize(self, columns: int, lines: int) -> None:
        """As xterm does: margins are lost, and what no longer fits scrolls off."""
        if (columns, lines) == (getattr(self, "columns", 0), getattr(self, "lines", 0)):
            return
        self.columns, self.lines = columns, lines
        while self.row >= lines:
            self.gone.append(self.rows.pop(0))
            self.row -= 1
        self.rows = (self.rows + [""] * lines)[:lines]
        self.bottom = lines - 1

    def measure(self) -> tuple[int, int]:
        return self.columns, self.lines

    def write(self, text: str) -> None:
        for parameters, final, escape, control, letter in TOKEN.findall(text):
            if letter:
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[: self.column] + letter + row[self.column + 1 :]
                self.column += 1
            elif control == "\r":
                self.column = 0
            elif control or escape == "D":
                self.go_down()
                self.column = 0 if control else self.column
            elif escape == "7":
                self.saved = self.row, self.column
            elif escape == "8":
                self.row, self.column = self.saved
            else:
                self.obey(final, [int(each) for each in re.findall(r"\d+", parameters)])

    def go_down(self) -> None:
        if self.row == self.bottom:
            self.gone.append(self.rows.pop(0))
            self.rows.insert(self.bottom, "")
        elif self.row < self.lines - 1:
            self.row += 1

    def obey(self, final: str, numbers: list[int]) -> None:
        if final == "A":
            self.row -= min(numbers[0], self.row)
        elif final == "H":
            self.row, self.column = numbers[0] - 1, numbers[1] - 1
        elif final == "K":
            self.rows[self.row] = ""
        elif final == "J":
            self.rows[self.row :] = [self.rows[self.row][: self.column], *[""] * (self.lines - self.row - 1)]
        elif final == "r":
            self.bottom = (numbers[1] if numbers else self.lines) - 1
            self.row = self.column = 0


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_the_job_prints_is_lost(seed: int) -> None:
    draw, terminal = random.Random(seed), Terminal(60, 24)
    band = Band(terminal.write, terminal.measure)
    printed: list[str] = []
    for number in range(draw.randrange(30)):
        terminal.write(f"before {number}\n")
        printed.append(f"before {number}")
    for turn in range(40):
        if draw.random() < 0.1:
            terminal.resize(draw.choice([50, 60]), draw.choice([20, 24, 31]))
        shown = [f"band {turn} {index}" for index in range(draw.randrange(1, 14))]
        band.draw(shown)
        shown = shown[: terminal.lines - LEAST_ABOVE]
        assert "\n".join(shown) in "\n".join(terminal.rows)
        said = f"said {turn}"
        terminal.write(said[:3])
        band.draw(shown)  # in the middle of a line
        terminal.write(f"{said[3:]}\n")
        printed.append(said)
        assert "\n".join(shown) in "\n".join(terminal.rows)
    band.close()
    terminal.write("after\n")
    assert [line for line in [*terminal.gone, *terminal.rows] if line] == [*printed, "after"]
    assert terminal.bottom == terminal.lines - 1


def test_a_band_that_was_never_drawn_leaves_the_terminal_alone() -> None:
    terminal = Terminal(60, 24)
    Band(terminal.write, terminal.measure).close()
    assert terminal.rows == [""] * 24


def test_a_small_terminal_has_no_room() -> None:
    assert has_room(80, 24) and not has_room(80, 12) and not has_room(30, 50)
