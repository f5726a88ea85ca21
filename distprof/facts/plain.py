"""Records as the containers that JSON knows."""

from typing import Any

import msgspec


def make_plain(record: msgspec.Struct) -> dict[str, Any]:
    """The fields by name, with all that they hold; a value of an enumeration is its text or number.

    Raises:
        TypeError: Something in it is no record, container, text or number.
    """
    plain: dict[str, Any] = msgspec.to_builtins(record, enc_hook=float)  # NumPy's floats are no float to it
    return plain
