"""What `import distprof` offers."""

from __future__ import annotations

import pytest

import distprof


def test_the_package_loads_nothing_until_it_is_asked() -> None:
    assert {"start", "Session", "__version__"} <= {*dir(distprof)}
    with pytest.raises(AttributeError, match="no attribute 'begin'; there are Session, __version__, start"):
        distprof.begin  # noqa: B018
