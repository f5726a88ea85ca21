"""Files left out, as lines for a terminal."""

from __future__ import annotations

from distprof.cli.options import MAX_UNREAD, list_unread


def test_a_line_per_file_and_one_for_the_rest() -> None:
    assert list_unread([]) == []
    lines = list_unread([f"rank{number}.json: empty" for number in range(MAX_UNREAD + 3)])
    assert lines[0] == "distprof: left out: rank0.json: empty"
    assert lines[MAX_UNREAD:] == ["distprof: left out: 3 more"]


def test_a_name_from_a_disk_brings_no_escape_and_no_line() -> None:
    (line,) = list_unread(["a\x1b[31m\nb.json: empty"])
    assert "\x1b" not in line and "\n" not in line
