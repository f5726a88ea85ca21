"""How much work is a regular expression on a hurtful text? Counted, not timed.

`Matcher` runs a pattern as Python's `re` does, trying the same alternatives in the same order, and counts what it
tries. `make_texts` reads from a pattern which texts may hurt it: those that begin as a match does, go on with what one
of its repetitions takes, and then end otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

FAILED = -1
Rest = Callable[[int], int]
"""What must match behind a part: from a position to the end of the whole match, or `FAILED`."""
Step = Callable[[int, Rest], int]
_SINGLE = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)
_DEPTH = 400_000
MAX_STEPS = 200_000
"""Counting ends there: such a pattern is hurt."""
LIMITED, SHRUNK = 2_000, 12
"""A repetition with a limit of its own costs at most that many times more. Up to the first number such limits count as
the second one, so that what grows beyond them shows in short texts."""


class _TooManyError(Exception):
    """Counting has ended."""


class Matcher:
    """A pattern that is run step by step."""

    def __init__(self, pattern: re.Pattern[Any], *, shrink: bool = False) -> None:
        self._shrink, self._flags = shrink, pattern.flags
        self._run = self._build(parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG))
        self._text = ""
        self.num_steps = 0
        self._most = MAX_STEPS

    def match(self, text: str, begin: int = 0, *, full: bool = False) -> int:
        """The end of the match that begins there, or `FAILED`."""
        self._text = text
        return self._run(begin, lambda at: at if not full or at == len(text) else FAILED)

    def count(self, text: str, method: str) -> int:
        """The steps of ``match``, ``fullmatch``, ``search``, or of finding every match in the text."""
        before, limit = self.num_steps, sys.getrecursionlimit()
        self._most = before + MAX_STEPS
        sys.setrecursionlimit(_DEPTH)
        try:
            if method in ("match", "fullmatch"):
                self.match(text, full=method == "fullmatch")
            else:
                begin, found = 0, FAILED
                while begin <= len(text) and (found == FAILED or method != "search"):
                    found = self.match(text, begin)
                    begin = max(found, begin + 1)
        except _TooManyError:
            pass
        finally:
            sys.setrecursionlimit(limit)
        return self.num_steps - before

    def _tried(self, count: int) -> None:
        self.num_steps += count
        if self.num_steps > self._most:
            raise _TooManyError

    def _build(self, parts: Any) -> Step:
        """A row of parts, one after another."""
        steps = [self._build_part(code, value) for code, value in parts]

        def run(at: int, rest: Rest, index: int = 0) -> int:
            if index == len(steps):
                return rest(at)
            return steps[index](at, lambda end: run(end, rest, index + 1))

        return run

    def _build_part(self, code: Any, value: Any) -> Step:
        if code in _SINGLE:
            return self._build_single(self.find_test(code, value))
        if code is codes.SUBPATTERN:
            return self._build(value[3])
        if code is codes.BRANCH:
            return self._build_branch([self._build(parts) for parts in value[1]])
        if code in _REPEATS:
            return self._build_repeat(code, *value)
        if code is codes.ATOMIC_GROUP:
            inside = self._build(value)
            return lambda at, rest: FAILED if (end := inside(at, _stop)) == FAILED else rest(end)
        if code in (codes.ASSERT, codes.ASSERT_NOT):
            return self._build_assertion(code is codes.ASSERT, *value)
        if code is codes.AT:
            return lambda at, rest: rest(at) if self._is_at(value, at) else FAILED
        raise NotImplementedError(f"{code}: teach it to {__name__}")

    def _build_single(self, fits: Callable[[str], bool]) -> Step:
        def run(at: int, rest: Rest) -> int:
            self._tried(1)
            return rest(at + 1) if at < len(self._text) and fits(self._text[at]) else FAILED

        return run

    def _build_branch(self, branches: Sequence[Step]) -> Step:
        def run(at: int, rest: Rest) -> int:
            self._tried(1)
            return next((end for branch in branches if (end := branch(at, rest)) != FAILED), FAILED)

        return run

    def _build_assertion(self, wanted: bool, direction: int, parts: Any) -> Step:
        inside, width = self._build(parts), parts.getwidth()[0] if direction < 0 else 0

        def run(at: int, rest: Rest) -> int:
            self._tried(1)
            found = at >= width and inside(at - width, _stop) != FAILED
            return rest(at) if found is wanted else FAILED

        return run

    def _build_repeat(self, code: Any, least: int, most: Any, parts: Any) -> Step:
        if self._shrink and SHRUNK < most <= LIMITED:
            most = max(least, SHRUNK)
        if len(parts) == 1 and parts[0][0] in _SINGLE:
            return self._build_run(code, least, most, self.find_test(*parts[0]))
        inside = self._build(parts)

        def run_possessively(at: int, rest: Rest) -> int:
            count = 0
            while count < most and (end := inside(at, _stop)) != FAILED:
                self._tried(1)
                count, stays, at = count + 1, end == at, end
                if stays:
                    break
            return rest(at) if count >= least else FAILED

        def run(at: int, rest: Rest, count: int = 0) -> int:
            self._tried(1)

            def again(end: int) -> int:
                return run(end, rest, count + 1) if end > at or count < least else FAILED

            if count < least:
                return inside(at, again)
            ways = [lambda: inside(at, again) if count < most else FAILED, lambda: rest(at)]
            for way in reversed(ways) if code is codes.MIN_REPEAT else ways:
                if (end := way()) != FAILED:
                    return end
            return FAILED

        return run_possessively if code is codes.POSSESSIVE_REPEAT else run

    def _build_run(self, code: Any, least: int, most: Any, fits: Callable[[str], bool]) -> Step:
        """A repeated character: `re` counts first, and goes back one by one."""

        def run(at: int, rest: Rest) -> int:
            count, highest = 0, min(most, len(self._text) - at)
            if code is codes.MIN_REPEAT:
                while count < least or (end := rest(at + count)) == FAILED:
                    self._tried(1)
                    if count >= highest or not fits(self._text[at + count]):
                        return FAILED
                    count += 1
                return end
            while count < highest and fits(self._text[at + count]):
                count += 1
            self._tried(count + 1)
            while count >= least:
                if (end := rest(at + count)) != FAILED or code is codes.POSSESSIVE_REPEAT:
                    return end
                count -= 1
                self._tried(1)
            return FAILED

        return run

    def _is_at(self, place: Any, at: int) -> bool:
        text = self._text
        lines = self._flags & re.MULTILINE
        if place in (codes.AT_BOUNDARY, codes.AT_NON_BOUNDARY):
            before, behind = at > 0 and _is_word(text[at - 1]), at < len(text) and _is_word(text[at])
            return (before is not behind) is (place is codes.AT_BOUNDARY)
        if place in (codes.AT_BEGINNING, codes.AT_BEGINNING_STRING):
            return at == 0 or bool(lines and place is codes.AT_BEGINNING and text[at - 1] == "\n")
        assert place in (codes.AT_END, codes.AT_END_STRING), place
        if place is codes.AT_END and text[at : at + 1] == "\n":
            return bool(lines) or at == len(text) - 1
        return at == len(text)

    def find_test(self, code: Any, value: Any) -> Callable[[str], bool]:
        """Whether a character fits a part that takes one."""
        known: dict[str, bool] = {}

        def fits(letter: str) -> bool:
            if letter not in known:
                spellings = {letter, letter.lower(), letter.upper()} if self._flags & re.IGNORECASE else {letter}
                known[letter] = any(self._fits(code, value, spelling) for spelling in spellings)
            return known[letter]

        return fits

    def _fits(self, code: Any, value: Any, letter: str) -> bool:
        if code is codes.ANY:
            return bool(self._flags & re.DOTALL) or letter != "\n"
        if code is codes.LITERAL:
            return ord(letter[0]) == value
        if code is codes.NOT_LITERAL:
            return ord(letter[0]) != value
        if code is codes.RANGE:
            return bool(value[0] <= ord(letter[0]) <= value[1])
        if code is codes.CATEGORY:
            name = str(value).rpartition("_")[2]
            found = {"DIGIT": str.isdecimal, "SPACE": str.isspace, "WORD": _is_word}[name](letter)
            return found is not ("_NOT_" in str(value))
        assert code is codes.IN, code
        negated = value[0][0] is codes.NEGATE
        return any(self._fits(*part, letter) for part in value[negated:]) is not negated


def _stop(at: int) -> int:
    return at


def _is_word(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


MAX_PUMPS = 120
"""Of a pattern with many repetitions, fewer letters are tried for each."""
_ALWAYS = "a0 _<:/.\n"
_END = "\0"


def make_texts(pattern: re.Pattern[Any]) -> Iterator[Callable[[int], str]]:
    """Texts that may hurt the pattern, each by the number of its repetitions."""
    tree = parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)
    maker = _Maker(Matcher(pattern), tree)
    seen = set()
    repeats = list(maker.find_repeats(tree, ""))
    most = max(MAX_PUMPS // max(len(repeats), 1), 4)
    for before, inside, behind in repeats:
        for pump in maker.list_pumps(inside)[:most]:
            for first, again in (("", pump), (before, pump), ("", before + pump)):
                for last in dict.fromkeys((_END, behind + _END, behind)):
                    if (first, again, last) not in seen:
                        seen.add((first, again, last))
                        yield lambda count, first=first, again=again, last=last: first + again * count + last  # type: ignore[misc]


class _Maker:
    """Makes texts that parts of a pattern match."""

    def __init__(self, matcher: Matcher, tree: Any) -> None:
        self._matcher = matcher
        self._letters = "".join(dict.fromkeys((*_ALWAYS, *_find_letters(tree))))

    def find_repeats(self, parts: Any, before: str) -> Iterator[tuple[str, Any, str]]:
        """Every repetition without a small limit: what leads up to it, its parts, and what follows."""
        for index, (code, value) in enumerate(parts):
            if code in _REPEATS and value[1] > SHRUNK:
                yield before, value[2], self.make_text(parts[index + 1 :])
            for inside in _list_inside(code, value):
                yield from self.find_repeats(inside, before)
            before += self.make_text(parts[index : index + 1])

    def list_pumps(self, parts: Any) -> list[str]:
        """Texts that the parts of a repetition take."""
        if len(parts) == 1 and parts[0][0] in _SINGLE:
            return list(filter(self._matcher.find_test(*parts[0]), self._letters))
        ways = [self.make_text(parts)]
        for index, (code, value) in enumerate(parts):
            for inside in _list_inside(code, value):
                text = self.make_text(inside)
                ways.append(self.make_text(parts[:index]) + text + self.make_text(parts[index + 1 :]))
        return [way for way in dict.fromkeys(ways) if way]

    def make_text(self, parts: Any) -> str:
        """A short text that the parts match, if none of them looks around."""
        text = ""
        for code, value in parts:
            if code in _SINGLE:
                text += next(filter(self._matcher.find_test(code, value), self._letters), "")
            elif code in _REPEATS:
                text += self.make_text(value[2]) * value[0]
            elif code in (codes.SUBPATTERN, codes.ATOMIC_GROUP, codes.BRANCH):
                text += self.make_text(next(_list_inside(code, value)))
        return text


def _list_inside(code: Any, value: Any) -> Iterator[Any]:
    if code in _REPEATS:
        yield value[2]
    elif code is codes.SUBPATTERN:
        yield value[3]
    elif code is codes.ATOMIC_GROUP:
        yield value
    elif code is codes.BRANCH:
        yield from value[1]
    elif code in (codes.ASSERT, codes.ASSERT_NOT):
        yield value[1]


def _find_letters(parts: Any) -> Iterator[str]:
    for code, value in parts:
        if code is codes.LITERAL:
            yield chr(value)
        elif code is codes.IN:
            yield from (chr(one if part is codes.LITERAL else one[0]) for part, one in value
                        if part in (codes.LITERAL, codes.RANGE))  # fmt: skip
        for inside in _list_inside(code, value):
            yield from _find_letters(inside)
