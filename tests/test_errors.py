"""What an error says, in one line."""

from __future__ import annotations

from distprof.errors import CUT, describe_error


def test_a_long_line_is_cut_where_one_sees_it() -> None:
    assert describe_error(ValueError("x" * 200 + "\nmore")) == f"ValueError: {'x' * 200}"
    assert describe_error(ValueError("x" * 201)) == f"ValueError: {'x' * (200 - len(CUT))}{CUT}"
