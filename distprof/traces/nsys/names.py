"""Names in a capture: texts in the rows, and texts that rows reference by their number in StringIds."""

from __future__ import annotations

import numpy as np

from distprof.facts.trace import UNKNOWN, IntArray
from distprof.traces.factorize import number_values
from distprof.traces.nsys.columns import Texts
from distprof.traces.nsys.database import Database, decode

LOST = b"(name not in the file)"
CROWDED = "(one of too many names)"
ASKED_AT_ONCE = 5_000


class StringIds:
    """Codes for all names of a file. Codes of `Texts` stay unchanged; `finish` turns them into indexes of names."""

    def __init__(self, database: Database, texts: Texts) -> None:
        self._database, self._texts = database, texts
        self._lost = 0

    def add(self, text: str) -> int:
        """The code of a name of our own."""
        return self._texts[text.encode()]

    def find(self, strings: IntArray) -> IntArray:
        """Codes of the names with these numbers in StringIds; -1 gives the empty name."""
        different, which = number_values(strings)
        known = self._read(different[different != UNKNOWN])
        lost = self._texts[LOST] if len(known) < np.count_nonzero(different != UNKNOWN) else UNKNOWN
        numbers = [0 if one == UNKNOWN else known.get(one, lost) for one in different.tolist()]
        found = np.array(numbers, np.int64)[which]
        self._lost += int(np.count_nonzero(found == lost)) if lost != UNKNOWN else 0
        return found

    def _read(self, strings: IntArray) -> dict[int, int]:
        """Reads only the texts needed: StringIds also holds what programs printed."""
        found: dict[int, int] = {}
        for begin in range(0, len(strings), ASKED_AT_ONCE):
            self._database.check_time()
            asked = ", ".join(map(str, strings[begin : begin + ASKED_AT_ONCE].tolist()))
            for string, text in self._database.read_texts("StringIds", "id", "value", f"WHERE id IN ({asked})"):
                if string not in found:
                    found[string] = self._texts[text]
        return found

    def finish(self) -> tuple[tuple[str, ...], IntArray, list[str]]:
        """The names; for each code given so far, and finally for -1, its name's index; and notes about losses."""
        letters = self._database.limits.max_name_letters
        texts = [decode(text, letters) for text in self._texts] + [CROWDED]
        names = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        long = sum(len(text.decode("utf-8", "replace")) > letters for text in self._texts)
        notes = [
            f"{count:,} {what}"
            for count, what in (
                (long, f"names longer than {letters:,} letters: cut"),
                (self._texts.refused, f"rows whose names exceeded the total size limit: named {CROWDED!r}"),
                (self._lost, "rows whose names are not in StringIds"),
            )
            if count
        ]
        return tuple(names), np.array([names[text] for text in texts], np.int64), notes
