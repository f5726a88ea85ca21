"""Strictly builds records from plain containers: the configuration from Hydra, records from files."""

from __future__ import annotations

import functools
import json
import math
import reprlib
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct, structs

from distprof.config.redact import MASK, is_secret_name
from distprof.config.suggest import explain_removed, suggest
from distprof.errors import DistprofError, UsageError

T = TypeVar("T", bound=Struct)
MAX_WHOLE = 2**63
"""Integers in configurations and records must be smaller, since they are used as 64-bit numbers."""
MAX_EXACT = 2**53
"""Up to here float64 represents integers exactly."""
MAX_DEPTH = 64
"""The deepest nesting of lists and groups."""
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 300
_SHORT.maxlist = _SHORT.maxdict = 20


def load_json(text: bytes) -> Any:
    """Reads strict JSON: no NaN, no number beyond a float's range.

    Raises:
        ValueError: It is not strict JSON.
        RecursionError: It is nested too deeply.
    """
    try:
        return _QUICK.decode(text)
    except ValueError:  # it is none, or is not in UTF-8, or has half a character in it, as a file's name may
        return _STRICT.decode(text.decode(json.detect_encoding(text), "surrogatepass"))


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _read_float(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits[:40])


_STRICT = json.JSONDecoder(parse_constant=_refuse, parse_float=_read_float)
_QUICK = msgspec.json.Decoder()
"""Both are made once: a rank's stream has one text per step."""


def require_flat(value: object) -> None:
    """Refuses lists and groups nested more than `MAX_DEPTH` deep.

    Raises:
        ValueError: They are.
    """
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        if not level:
            return
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = [item for item in inner if isinstance(item, dict | list)]
    raise ValueError(f"nested more than {MAX_DEPTH} deep")


def is_whole(value: object, below: int = MAX_WHOLE) -> bool:
    """Whether a value is an integer, at least 0 and below a bound."""
    return type(value) is int and 0 <= value < below


def are_whole(values: Collection[object], below: int = MAX_EXACT) -> bool:
    """Whether all values are integers, at least 0 and below a bound."""
    if not values:
        return True
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < below  # type: ignore[type-var,operator]


def decode(cls: type[T], values: object, where: str = "", error: type[DistprofError] = UsageError) -> T:
    """Builds a record from plain containers, refusing everything unknown.

    Args:
        cls: The record to build.
        values: A mapping, as `OmegaConf.to_container` returns it.
        where: The dotted path of ``values``, for messages.
        error: The exception to raise.

    Raises:
        DistprofError: There is an unknown or missing key, or a value of the wrong type; the message names its path.
    """
    if not isinstance(values, Mapping):
        raise error(f"{where or 'the configuration'}: expected a group of keys, got {_show(where, values)}")
    hints = _read_hints(cls)
    for key in values:
        if key not in hints:
            hint = suggest(str(key), hints) or f"; known keys: {', '.join(hints)}"
            raise error(f"{_join(where, key)}: unknown key{hint}")
    required = _list_required(cls)
    missing = [key for key in hints if (key in required and key not in values) or values.get(key) == "???"]
    if missing:
        raise error(f"{_join(where, missing[0])}: missing; give it a value: {_join(where, missing[0])}=...")
    return cls(**{key: _value(hints[key], values[key], _join(where, key), error) for key in hints if key in values})


def list_keys(cls: type, where: str = "") -> Iterator[str]:
    """The dotted names of all keys of a configuration and its groups, in every choice of them."""
    for key, hint in _read_hints(cls).items():
        name = _join(where, key)
        yield name
        for option in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
            if _is_record(option):
                yield from list_keys(option, name)


@functools.cache
def _read_hints(cls: type) -> dict[str, Any]:
    """The types of a record's fields, cached, because Python recompiles their text at every request."""
    return get_type_hints(cls)


@functools.cache
def _list_required(cls: type[Struct]) -> frozenset[str]:
    """The names of the fields that have no default."""
    return frozenset(item.name for item in structs.fields(cls) if item.required)


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _value(hint: Any, value: object, where: str, error: type[DistprofError]) -> object:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    groups: list[Any] = [option for option in options if _is_record(option)]
    if len(groups) == 1:
        return None if value is None and type(None) in options else decode(groups[0], value, where, error)
    if groups:
        return decode(_chosen(groups, value, where, error), value, where, error)
    rows = _read_row_type(hint)
    if rows is not None and isinstance(value, list | tuple):
        return tuple(decode(rows, item, f"{where}[{index}]", error) for index, item in enumerate(value))
    for option in options:
        matched, result = _scalar(option, value)
        if matched:
            return result
    wanted = " or ".join(_describe(option) for option in options)
    raise error(f"{where}={_show(where, value)}: expected {wanted}{explain_removed(where, value)}")


def _chosen(groups: list[Any], value: object, where: str, error: type[DistprofError]) -> Any:
    """The member of a union of groups with the given ``name`` literal."""
    names = {get_args(get_type_hints(group)["name"])[0]: group for group in groups}
    name = value.get("name") if isinstance(value, Mapping) else value
    if not isinstance(name, str) or name not in names:
        raise error(f"{where}={_show(where, name)}: expected one of {', '.join(names)}")
    return names[name]


def _read_row_type(hint: Any) -> Any:
    """The record in a tuple of any length. None: not such a tuple."""
    held = get_args(hint)[0] if get_origin(hint) is tuple else None
    return held if _is_record(held) else None


def _scalar(option: Any, value: object) -> tuple[bool, object]:
    if get_origin(option) is Literal:
        return any(value is item or (type(value) is type(item) and value == item) for item in get_args(option)), value
    if option in (int, float) and type(value) is int:
        within = abs(value) < MAX_WHOLE
        return within, option(value) if within else None
    if option is type(None):
        return value is None, None
    if get_origin(option) is tuple:  # of texts or whole numbers: tuples of groups are handled elsewhere
        held = get_args(option)[0]
        return isinstance(value, list | tuple) and all(_scalar(held, item)[0] for item in value), _as_tuple(value)
    if get_origin(option) is Mapping:
        return isinstance(value, Mapping), value
    return type(value) is option, value


def _as_tuple(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _describe(option: Any) -> str:
    if get_origin(option) is Literal:
        return "one of " + ", ".join(str(item) for item in get_args(option))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return names.get(option) or (_describe_list(option) if get_origin(option) is tuple else "a group of keys")


def _describe_list(option: Any) -> str:
    held = get_args(option)[0]
    if held is int:
        return "a list of whole numbers"
    if get_origin(held) is Literal:
        return f"a list of {', '.join(map(str, get_args(held)))}, such as [{get_args(held)[0]}]"
    return "a list of texts" if _read_row_type(option) is None else "a list of groups of keys"


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)


def _show(where: str, value: object) -> str:
    return MASK if is_secret_name(where) else _SHORT.repr(value)
