"""A file of a configuration that holds a number or a list is refused by its name, and an empty one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.config.compose import compose, read_request
from distprof.errors import UsageError


def compose_with(folder: Path, text: str) -> None:
    (folder / "train").mkdir()
    (folder / "train" / "mine.yaml").write_text(text)
    arguments = ["--config-dir", str(folder), "+train@other=mine"]
    compose(read_request(arguments), launched=False, arguments=arguments)


@pytest.mark.parametrize("text", ["5", "true", "1.5", "[1]", "- a\n- b\n", "0x1F"])
def test_a_value_in_place_of_keys_names_the_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        compose_with(tmp_path, text)
    assert str(raised.value) == f"{tmp_path}/train/mine.yaml: expected a group of keys, such as `steps: 10`"


@pytest.mark.parametrize("text", ["", "null", "~", "# nothing\n", "{}"])
def test_an_empty_file_has_no_keys(text: str, tmp_path: Path) -> None:
    compose_with(tmp_path, text)
