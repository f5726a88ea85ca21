"""Numbers and names as people read them."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distprof.render import units

FORMATS: list[Callable[[float | None], str]] = [
    units.format_time, units.format_excess, units.format_milliseconds, units.format_bytes, units.format_flops,
    units.format_flops_per_s, units.format_count, units.format_ratio, units.format_number,
    units.format_factor,
]  # fmt: skip


@pytest.mark.parametrize(
    ("show", "value", "text"),
    [
        (units.format_time, 412_300_000, "412.3 ms"),
        (units.format_time, 0, "0 ms"),
        (units.format_time, 812, "812 ns"),
        (units.format_time, 81_240, "81.2 us"),
        (units.format_time, 999_960_000, "1.000 s"),
        (units.format_time, 6_547_000_000, "6.547 s"),
        (units.format_time, 7_200e9, "7,200.000 s"),
        (units.format_time, -2_500_000, "-2.5 ms"),
        (units.format_excess, 200_100_000, "+200.1 ms"),
        (units.format_excess, -200_100_000, "-200.1 ms"),
        (units.format_excess, 0, "0 ms"),
        (units.format_milliseconds, 0, "0"),
        (units.format_milliseconds, 3_000, "<0.01"),
        (units.format_milliseconds, -3_000, "0.00"),
        (units.format_milliseconds, 10_034_000, "10.03"),
        (units.format_milliseconds, 99_990_000, "100.0"),
        (units.format_milliseconds, 99_930_000, "99.93"),
        (units.format_milliseconds, 2_846_300_000, "2,846.3"),
        (units.format_bytes, 0, "0 B"),
        (units.format_bytes, 592, "592 B"),
        (units.format_bytes, 1536, "1.5 KiB"),
        (units.format_bytes, 474.7 * 2**20, "474.7 MiB"),
        (units.format_bytes, 2**30 - 1, "1.0 GiB"),
        (units.format_bytes, 2**75, "32,768.0 EiB"),
        (units.format_flops, 1.84e12, "1.84 TFLOP"),
        (units.format_flops_per_s, 312.4e12, "312.4 TFLOP/s"),
        (units.format_flops_per_s, 999.999e9, "1.00 TFLOP/s"),
        (units.format_flops_per_s, 0, "0 FLOP/s"),
        (units.format_count, 124_439_808, "124,439,808"),
        (units.format_count, 2.5, "2.5"),
        (units.format_count, 3.0, "3"),
        (units.format_factor, 2.94, "2.9 times"),
        (units.format_factor, 0.25, "0.25 times"),
        (units.format_ratio, 0.413, "41.3 %"),
        (units.format_ratio, 0, "0 %"),
        (units.format_ratio, 0.0003, "0.03 %"),
        (units.format_ratio, 1e-9, "<0.01 %"),
        (units.format_ratio, -1e-9, "0.00 %"),
        (units.format_ratio, 1, "100.0 %"),
        (units.format_number, 13_637.2, "13,637"),
        (units.format_number, 132.62, "132.6"),
        (units.format_number, 78.2, "78.20"),
        (units.format_number, 2.5, "2.500"),
        (units.format_number, 0.00012, "1.20e-04"),
        (units.format_number, 0, "0"),
    ],
)
def test_numbers(show: Callable[[float | None], str], value: float, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize("show", FORMATS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
def test_what_was_not_measured_is_never_a_number(show: Callable[[float | None], str], value: float | None) -> None:
    assert show(value) == "n/a"


@pytest.mark.parametrize("show", FORMATS)
@given(value=st.floats(1e-12, 1e18))
def test_something_is_never_shown_as_nothing(show: Callable[[float | None], str], value: float) -> None:
    if show not in (units.format_time, units.format_bytes, units.format_flops, units.format_count,
                    units.format_flops_per_s, units.format_excess) or value >= 1:  # fmt: skip
        assert re.search(r"[1-9]", show(value)), show(value)


@given(st.floats(1, 1e17))
def test_a_time_reads_back_as_itself(value_ns: float) -> None:
    number, unit = units.format_time(value_ns).split()
    scale_ns = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert float(number.replace(",", "")) * scale_ns == pytest.approx(value_ns, rel=0.06 if scale_ns > 1 else 0.5)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07name", "name"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("a\x1bcb", "ab"),
        ("abc\u202edef\u2066g\u200bh", "abcdefgh"),
        ("a\x00b\x08c\x7f", "abc"),
        ("two\r\n  lines\tand a tab", "two lines and a tab"),
        ("\ud800lone", "lone"),
        ("Größe 模型", "Größe 模型"),
        ("", ""),
        (None, "n/a"),
        ("x" * 61, "x" * 57 + "..."),
        ("x" * 60, "x" * 60),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]"),
    ],
)
def test_names(text: str | None, shown: str) -> None:
    assert units.clean_text(text) == shown


@given(st.text(max_size=200), st.integers(4, 80))
def test_any_text_becomes_one_short_visible_line(text: str, limit: int) -> None:
    shown = units.clean_text(text, limit)
    assert len(shown) <= limit
    assert not [character for character in shown if unicodedata.category(character)[0] == "C"]
    assert units.clean_text(shown, limit) == shown


def test_a_megabyte_of_escapes_takes_no_time() -> None:
    assert units.clean_text("\x1b[" * 500_000 + "end") == "nd"  # the last one takes the e for its command
