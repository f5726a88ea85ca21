"""Random changes to JSON: values of wrong types and sizes anywhere, keys removed, renamed and repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

Container = dict[Any, Any] | list[Any]
STAY_RATIO = 0.2
"""How often the way down into a tree ends before a leaf."""
REPLACE_RATIO = 0.5
"""How often a value is replaced, the most effective change, instead of drawing one of all changes."""
DEEP, DEEPER = 300, 100_000


class Raw:
    """Text that is written unchanged, JSON or not."""

    def __init__(self, text: str) -> None:
        self.text = text


class Twin(str):
    """A key that may occur twice in one object."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 255, 65536, 10**6, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 2, 10**15, 10**18, 2**62, 2**63 - 1,
    2**63, 2**64, -(2**63), -(10**18), 10**30, 0.5, -0.0, 1e-300, 1.5, 1e15, 1e17, 1e300, 1.7e308, -1e308,
    float("nan"), float("inf"), float("-inf"), Raw("1e999"), Raw("9" * 400), Raw("9" * 5000), Raw("-0"), Raw("1E400"),
)  # fmt: skip
TEXTS = (
    "", " ", "0", "1", "-1", "1.5", "nan", "x", "\u00b2", "\u0663", "true", "null", "all_reduce", "backward", "0x0",
    "</script><script>alert(1)</script>", "\x1b[31mred\x1b[0m", "\x00", "\u202eabc\u2066", "\ud800", "a\nb\rc",
    "=1+1", "[bold]x[/bold]", "[/]", "../../etc/passwd", "%s%n{0}", "n" * 5000, "\u00fc" * 300,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (
    None, True, False, [], {}, [None], [[]], [{}], {"": None}, {"a": {"b": [1]}}, [0] * 40, [None] * 2000, [1, "x"],
    Raw("[" * DEEP + "]" * DEEP), Raw('{"a":' * DEEP + "1" + "}" * DEEP), Raw("[" * DEEPER + "]" * DEEPER),
    Raw('{"a":1,"a":2}'),
)  # fmt: skip

PUMPS = (
    "<",
    "gemv<",
    "gemmk1_<float",
    "_v1",
    "_ptsz",
    "a::",
    "at::native::",
    "cijk_a_b_h",
    "S",
    "0",
    " ",
    "a",
    "_",
    "step_",
    "1",
    "eyJ-",
    "://",
    "-",
    "=",
    "authorization: ",
    "bearer ",
    "L",
    "\x1b[",
    "norm_",
    "Backward0",
    "rank0",
    "conv_",
    "triton_tem_fused_",
    "enumerate dataloader n",
    "forward ",
    "Memcpy DtoH",
    "enumerate(DataLoader)#",
    "ncclKernel_",
)
"""What patterns repeat."""
ENDS = ("", "x", "_", "\x00", "_mx_", "float,", "(", ">", "_v", "_forward", "#1")
LONG_LETTERS = 20_000
SCALARS: tuple[Any, ...] = (5, -1, 0.5, True, False, None, "", "x", [], [5], {}, "0" * 3000)


def dump(value: Any) -> str:
    """JSON, or what a careless program would write for it: NaN, repeated keys, `Raw` text."""
    try:
        return json.dumps(value)
    except TypeError:  # it contains raw text
        pass
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(key))}:{dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(dump, value)) + "]"
    return json.dumps(value)


def draw_hurtful(draws: random.Random, letters: int = LONG_LETTERS) -> str:
    """A name made for a regular expression to try, in vain, in many ways."""
    pump = draws.choice(PUMPS)
    return draws.choice(("", "void ", *PUMPS)) + pump * (letters // len(pump)) + draws.choice((*ENDS, *PUMPS))


def draw_value(draws: random.Random, old: Any = None) -> Any:
    """A value that does not belong there; sometimes close to the old one."""
    if draws.random() < 0.35:
        return _draw_near(draws, old)
    return deepcopy(draws.choice(draws.choice((NUMBERS, TEXTS, OTHERS))))  # cases must not share what they change


def _draw_near(draws: random.Random, old: Any) -> Any:
    if isinstance(old, bool) or not isinstance(old, int | float):
        return draws.choice((str(old), [old], {"value": old}, None))
    by = 10 ** draws.randrange(1, 13)
    if abs(old) > 1e250 or old != old:  # nothing is close to it
        return -old
    return draws.choice((-old, old * by, old // by, old + by, old - by, old + 0.5, str(old), float(old), [old]))


def mutate(tree: Container, draws: random.Random) -> str:
    """Changes one value in a tree of containers. Returns a description of the change."""
    if not tree:
        return "nothing"
    path: list[Any] = []
    here = tree
    while True:
        key = draws.choice(list(here)) if isinstance(here, dict) else draws.randrange(len(here))
        path.append(key)
        below = here[key]
        if not isinstance(below, dict | list) or not below or draws.random() < STAY_RATIO:
            break
        here = below
    name = "replace" if draws.random() < REPLACE_RATIO else draws.choice(list(_CHANGES))
    _CHANGES[name](here, key, draws)
    return f"{name} at {'.'.join(map(str, path))[:80]}"


def _replace(here: Any, key: Any, draws: random.Random) -> None:
    here[key] = draw_value(draws, here[key])


def _delete(here: Any, key: Any, draws: random.Random) -> None:
    del here[key]


def _repeat(here: Any, key: Any, draws: random.Random) -> None:
    value = here[key] if draws.random() < 0.5 else draw_value(draws, here[key])
    if isinstance(here, dict):
        here[Twin(key)] = value
    else:
        here[key:key] = [value] * draws.choice((1, 1, 3, 1100))


def _rename(here: Any, key: Any, draws: random.Random) -> None:
    if isinstance(here, list):
        draws.shuffle(here)
        return
    text, other = str(key), draws.choice(list(here))
    here[draws.choice((text.upper(), f" {text}", "", draws.choice(TEXTS), other))] = here.pop(key)


def _swap(here: Any, key: Any, draws: random.Random) -> None:
    other = draws.choice(list(here)) if isinstance(here, dict) else draws.randrange(len(here))
    here[key], here[other] = here[other], here[key]


_CHANGES: dict[str, Callable[[Any, Any, random.Random], None]] = {
    "replace": _replace, "delete": _delete, "repeat": _repeat,
    "rename": _rename, "swap": _swap,
}  # fmt: skip
