"""Keeps secrets out of everything that is written or shown, by key name, by value, and by form."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote, quote_plus

from distprof.config.secret_kinds import FORMS, PLACES, is_secret_name, is_token_list, looks_random

__all__ = [
    "MASK",
    "MIN_SECRET_LENGTH",
    "find_secrets",
    "is_secret_name",
    "mask",
    "mask_known",
    "redact",
    "secret_values",
]

MASK = "[redacted]"
MIN_SECRET_LENGTH = 6
"""Shorter values are not searched for, since they would mask ordinary words. They are masked after their names."""
_ORDINARY_VALUES = frozenset(
    ("bearer", "basic", "digest", "negotiate", "default", "enabled", "disabled", "required", "optional")
)
"""Values of secret names that are not searched for either: they name the kind of secret, or whether there is one."""
MIN_LINE_LENGTH = 16
"""Each line of a secret of several lines is searched for if it has so many characters."""
MAX_LOGIN_LENGTH = 400
"""The longest login that may be before the @ of a URL."""
MAX_NAME_LENGTH = 200

_FORMS = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(FORMS.values())})")
_PLACES = tuple(re.compile(pattern, re.I) for pattern in PLACES.values())
_URL_START = re.compile(r":/{1,2}(?=[^\s/])")
_URL_PART = re.compile(r"[^\s'\"/]*")
_URL_END = re.compile(r"[\s'\"]")
_PEM_MARKER = re.compile(r"-----(BEGIN|END)[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_PEM_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s,:-]|\\{1,6}[nr])*+")
_BACKWARDS = r"(?:(?![nr]\\)[A-Za-z0-9+/=])"
_PEM_LINES_BACKWARDS = re.compile(
    rf"(?:\s|[nr]\\+)*+{_BACKWARDS}{{0,100}}+(?:(?:\s|[nr]\\+)++{_BACKWARDS}{{16,100}}+)*+"
)
"""The lines before the end of a key, of which the last may be short."""
_NAME_TAIL = re.compile(
    r"(?:pass|pwd|secret|token|cred|auth|key|cookie|jwt|pat|dsn|webhook|conn|sas|signature|otp|psk)[\w-]{0,100}+"
    r"(?P<close>\]?\\{0,6}['\"]?)\s{0,9}(?P<sign>:?={1,3}>?|%3d|:(?![:=]|//)|(?<=['\"]),(?=\s{0,9}[bru]?\\{0,6}['\"]))\s{0,9}",
    re.I,
)
"""From the word that gives a name away up to the value, in ``a.b=c``, ``-e A=b``, ``{a: b}``, ``"a": "b"`` and
``'--a', 'b'``. A name may begin before it."""
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]{0,100}+)\s{1,9}(?![-=:\s])")
_OPEN_QUOTE = re.compile(r"[bru]?(\\{0,6}['\"])", re.I)
_SCHEME = re.compile(
    r"(?:bearer|basic|digest|negotiate|token|api-?key|aws4-hmac-sha256)(?:\s{1,9}|%20)(?=[^\s,;'\"])", re.I
)
_AFTER_SIGN = {"=": re.compile(r"[^\s&'\"]+"), ":": re.compile(r"[^\s,;&})\]'\"]+"), " ": re.compile(r"\S+")}
_CREDENTIALS = re.compile(r"(?:[\w-]{1,40}+=(?:\"[^\"\n]{0,500}+\"|[^\s,'\"]+),?\s{0,3}){1,20}+")
"""An Authorization header with several parts."""
_TWO_PARTS = re.compile(r"[A-Za-z][\w-]{0,30}+ (?=\S{0,200}\d)[^\s,;'\"]{8,}+")
"""An Authorization header with an unknown scheme."""
_FIRST_ITEM = re.compile(r"[\[({\s'\"\\]{0,9}([\w~+=.-]{8,200}+)")
_COOKIES = re.compile(r"[^\s;,'\"=]{1,200}+=[^\s;'\"]*+(?:;\s{0,3}[^\s;'\"=]{1,200}+(?:=[^\s;'\"]*+)?)*+")
_BRACKET = re.compile(r"[][{}]")

Span = tuple[int, int]


def secret_values(arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """Values to mask wherever they occur: from environment variables with secret names, and from a command line.

    Args:
        arguments: ``key=value``, ``--key value`` and any text with such pairs, or with a URL that has a login.

    Returns:
        The values, longest first, so that a value that contains another one is masked completely.
    """
    found = {_strip_scheme(value) for name, value in os.environ.items() if is_secret_name(name)}
    found |= {value for text in (*os.environ.values(), *arguments) for value in _list_values(text)}
    pairs = [(name, value) for name, value in pairwise(arguments) if name[:1] == "-" and "=" not in name]
    pairs += [(name, value) for name, _, value in (argument.partition("=") for argument in arguments)]
    found |= {_strip_scheme(value) for name, value in pairs if is_secret_name(name)}
    found |= {line for value in found for line in value.splitlines()[1:-1] if len(line) >= MIN_LINE_LENGTH}
    spellings = {spelling for value in found for spelling in _spell(value)}
    return tuple(sorted(filter(_is_searched_for, spellings), key=lambda text: (-len(text), text)))


def _strip_scheme(value: str) -> str:
    scheme = _SCHEME.match(value)
    return value[scheme.end() :] if scheme else value


def _list_values(text: str) -> Iterator[str]:
    """The values of the secrets in a text; JSON is read as such."""
    if text.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError, RecursionError):
            yield from _list_leaves(json.loads(text), secret=False)
    for begin, end in find_secrets(text):
        yield text[begin:end].strip("'\"")
    for begin, end in _find_logins(text):
        yield text[begin:end].partition(":")[2]


def _list_leaves(value: object, *, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _list_leaves(item, secret=secret or _holds_secret(key, item))
    elif isinstance(value, list):
        for item in value:
            yield from _list_leaves(item, secret=secret)
    elif isinstance(value, str):
        yield from (_strip_scheme(value),) if secret else _list_values(value)


def _spell(value: str) -> Iterator[str]:
    """A value as it may stand in a text."""
    yield from (value.strip(), value.strip("'\""), repr(value)[1:-1], json.dumps(value)[1:-1])
    yield from (quote(value, safe=""), quote(value), quote_plus(value))


def _is_searched_for(value: str) -> bool:
    return len(value) >= MIN_SECRET_LENGTH and value.lower() not in _ORDINARY_VALUES and value not in MASK


def redact(value: object, secrets: Iterable[str] = ()) -> object:
    """Copies plain containers without secrets.

    Args:
        value: Nested mappings, lists and scalars.
        secrets: Values to mask in all texts, as returned by `secret_values`.
    """
    if isinstance(value, Mapping):
        named = is_secret_name(
            str(value.get("name", value.get("key")))
        )  # {name: TOKEN, value: x}, as containers have it
        return {
            str(key): MASK if _holds_secret(key, item) or (named and key == "value") else redact(item, secrets)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        before = (None, *value)
        return [
            MASK if isinstance(item, str) and _announces(name) and not item.startswith("--") else redact(item, secrets)
            for name, item in zip(before, value, strict=False)
        ]
    return mask(value, secrets) if isinstance(value, str) else value


def _holds_secret(name: object, value: object) -> bool:
    return value is not None and (is_secret_name(name) or (is_token_list(name) and looks_random(value)))


def _announces(name: object) -> bool:
    """Whether what follows in a list is a secret: an option's value, or a header's."""
    if not isinstance(name, str) or not re.fullmatch(r"-{0,2}[A-Za-z][\w-]{0,100}", name):
        return False
    return is_secret_name(name) and ("-" in name or name.lower() in ("authorization", "cookie"))


def mask(text: str, secrets: Iterable[str]) -> str:
    """Replaces every secret in a text by `MASK`: the given values, logins, keys, and values after secret names."""
    return _hide(text, [*_find_values(text, secrets), *find_secrets(text)])


def mask_known(text: str, secrets: Iterable[str]) -> str:
    """Like `mask`, but masks by name only in clear cases: for text that may be data, such as a report's."""
    return _hide(text, [*_find_values(text, secrets), *_find_forms(text)])


def find_secrets(text: str) -> list[Span]:
    """Where secrets are in a text, in no order, as far as their form or their name shows them."""
    return [*_find_forms(text), *_find_named(text), *_find_options(text)]


def _hide(text: str, spans: list[Span]) -> str:
    """Masks spans, which may overlap: what one rule has found does not hide anything from the next."""
    if not spans:
        return text
    kept, done = [], -1
    for begin, end in sorted(spans):
        if begin > done:
            kept += [text[max(done, 0) : begin], MASK]
        done = max(done, end)
    return "".join([*kept, text[done:]])


def _find_values(text: str, secrets: Iterable[str]) -> Iterator[Span]:
    for secret in secrets:
        begin = text.find(secret)
        while begin >= 0:
            yield begin, begin + len(secret)
            begin = text.find(secret, begin + len(secret))


def _find_forms(text: str) -> Iterator[Span]:
    """Secrets that need no name."""
    yield from (found.span() for found in _FORMS.finditer(text))
    for place in _PLACES:
        yield from (found.span(1) for found in place.finditer(text))
    yield from _find_logins(text)
    yield from _find_pem(text)


def _find_logins(text: str) -> Iterator[Span]:
    """Logins in URLs; also if the password contains a slash or an @, or if a path has lost a slash."""
    done = 0
    for start in _URL_START.finditer(text) if "@" in text else ():
        if (begin := start.end()) < done:
            continue
        host = _URL_PART.match(text, begin, begin + MAX_LOGIN_LENGTH)
        if host is None or (end := host.end()) == begin:
            continue
        user, _, password = host[0].partition(":")
        if text[end : end + 1] == "/" and "@" not in host[0] and user and password and not password.isdigit():
            rest = _URL_END.search(text, end, begin + MAX_LOGIN_LENGTH)
            end = begin + MAX_LOGIN_LENGTH if rest is None else rest.start()
        if (at := text.rfind("@", begin, end)) > begin:
            done = at
            yield begin, at


def _find_pem(text: str) -> Iterator[Span]:
    """Private keys, also cut at either end, and with escaped line ends."""
    markers = list(_PEM_MARKER.finditer(text))
    done = 0
    for marker, following in zip(markers, (*markers[1:], None), strict=False):
        if marker.start() < done:
            continue
        begin = marker.start()
        if marker[1] == "END":
            before = _PEM_LINES_BACKWARDS.match(text[done:begin][::-1])
            yield begin - (before.end() if before else 0), marker.end()
            done = marker.end()
        else:
            whole = following is not None and following[1] == "END"
            body = _PEM_BODY.match(text, marker.end())
            done = following.end() if following is not None and whole else body.end() if body else marker.end()
            yield begin, done


def _find_named(text: str) -> Iterator[Span]:
    """Values after secret names, without their quotes."""
    done, brackets = 0, _Brackets(text)
    for found in _NAME_TAIL.finditer(text):
        begin = found.start()
        floor = max(begin - MAX_NAME_LENGTH, 0)
        while begin > floor and (text[begin - 1].isalnum() or text[begin - 1] in "_-"):
            begin -= 1
        name = text[begin : found.start("close")]
        header = "" if text[begin - 1 : begin] in ("?", "&") else name.lower()
        if found.end() < done or text.startswith("...", found.end()):
            continue
        sign = "=" if found["sign"][0] in "=%" or found["sign"].endswith("=") else ":"
        if found["sign"] == "," and not ("-" in name or name.lower() in ("authorization", "cookie")):
            continue
        if is_secret_name(name) or (is_token_list(name) and _begins_randomly(text, found.end())):
            value = _match_value(text, found.end(), sign, header, brackets)
            if value is not None:
                done = value[1]
                yield value


def _begins_randomly(text: str, begin: int) -> bool:
    item = _FIRST_ITEM.match(text, begin)
    return item is not None and looks_random(item[1])


def _match_value(text: str, begin: int, sign: str, name: str, brackets: _Brackets) -> Span | None:
    """The value that begins here: quoted, in brackets, or up to what cannot belong to it."""
    opened = _OPEN_QUOTE.match(text, begin)
    if opened is not None:
        begin = opened.end()
        closed = brackets.locate_quote(opened[1], begin)
    scheme = _SCHEME.match(text, begin)
    begin = scheme.end() if scheme else begin
    if opened is not None:
        return (begin, closed) if closed > begin else None
    if text[begin : begin + 1] in ("{", "["):
        return begin, brackets.locate_end(begin)
    if name.endswith(("cookie", "cookies")) and (pairs := _COOKIES.match(text, begin)):
        return pairs.span()
    if name.endswith("authorization") and (parts := _CREDENTIALS.match(text, begin) or _TWO_PARTS.match(text, begin)):
        return parts.span()
    plain = _AFTER_SIGN[sign].match(text, begin)
    return plain.span() if plain else None


class _Brackets:
    """Finds where quotes and brackets of a text end; looks at each part of the text once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._missing: set[str] = set()

    def locate_quote(self, quote: str, begin: int) -> int:
        """Where the quote stands again; the end of the line without one."""
        end = -1 if quote in self._missing else self._text.find(quote, begin)
        while end > begin and self._text[end - 1] == "\\":  # it is escaped: it belongs to the value
            end = self._text.find(quote, end + 1)
        if end >= 0:
            return end
        self._missing.add(quote)
        line_end = self._text.find("\n", begin)
        return line_end if line_end >= 0 else len(self._text)

    def locate_end(self, begin: int) -> int:
        """Behind the bracket that closes the one here; the end of the text without one."""
        depth = 0
        for bracket in _BRACKET.finditer(self._text, begin):
            depth += 1 if bracket[0] in "{[" else -1
            if depth == 0:
                return bracket.end()
        return len(self._text)


def _find_options(text: str) -> Iterator[Span]:
    """What follows an option with a secret name: ``--password x``."""
    done, brackets = 0, _Brackets(text)
    for option in _OPTION.finditer(text):
        if option.start() >= done and is_secret_name(option[1]):
            value = _match_value(text, option.end(), " ", option[1].lower(), brackets)
            if value is not None:
                done = value[1]
                yield value
