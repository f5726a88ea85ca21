"""Composing a configuration takes a bounded amount of work, whatever multiplies in it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from distprof.config.compose import compose, loader, read_request
from distprof.config.compose.loader import bounded
from distprof.errors import UsageError


def multiply(join: str, wrap: str) -> str:
    return "".join(f"a{n}: {wrap.format(join.join([f'*a{n - 1}'] * 10), n)}\n" for n in range(1, 12))


BOMBS = {
    "lists": "a0: &a0 [x]\n" + multiply(",", "&a{1} [{0}]"),
    "merged": "a0: &a0 {x: 1}\n" + multiply(",", "&a{1} {{<<: [{0}]}}"),
    "texts": f"a0: {'x' * 1000}\n"
    + "".join(f"a{n}: '{f'${{train.a{n - 1}}}' * 10}'\n" for n in range(1, 12)),
    "groups": "a0: {x: 1}\n"
    + "".join(f"a{n}: {{p: '${{train.a{n - 1}}}', q: '${{train.a{n - 1}}}'}}\n" for n in range(1, 40)),
    "long": "".join(f"k{n}: [{n}]\n" for n in range(100_000)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_fault_19_what_multiplies_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "CPU_S", 1.0)
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "bomb.yaml").write_text(BOMBS[name])
    arguments = ["--config-dir", str(tmp_path), "train=bomb"]
    with pytest.raises(UsageError, match="the configuration is too large"):
        compose(read_request(arguments), launched=False, arguments=arguments)


def test_a_sweep_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "CPU_S", 1.0)
    arguments = ["--multirun", "seed=range(1,1000000000)"]
    with pytest.raises(UsageError, match="the configuration is too large"):
        compose(read_request(arguments), launched=False, arguments=arguments)


def test_what_is_within_its_limits_is_left_alone_and_so_are_others_timers() -> None:
    before = signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL)
    with bounded():
        with bounded():
            pass
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[1] == loader.CHECK_EVERY_S
    assert (signal.getsignal(signal.SIGVTALRM), signal.getitimer(signal.ITIMER_VIRTUAL)) == before
    with pytest.raises(KeyError), bounded():
        raise KeyError
