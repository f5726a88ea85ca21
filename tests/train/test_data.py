"""Batches: different on every rank, the same in every run, and text that cannot be read is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from distprof.config.schema import TextDataConfig
from distprof.errors import UsageError
from distprof.train.data import TextWindows, make_batches, read_text


def make_config(data: Any) -> Any:
    from types import SimpleNamespace

    model = SimpleNamespace(vocab_size=300)
    train = SimpleNamespace(micro_batch=2, seq_len=16, model=model)
    return SimpleNamespace(data=data, train=train, seed=1)


def make_text(path: Path | None, **changes: Any) -> TextDataConfig:
    return replace(
        TextDataConfig(name="text", path=None if path is None else str(path), glob="*.py", max_bytes=10_000, workers=0),
        **changes,
    )


def test_random_batches_repeat_and_differ_by_rank() -> None:
    from distprof.config.schema import SyntheticDataConfig

    config = make_config(SyntheticDataConfig(name="synthetic"))
    first, again, other = (make_batches(config, rank=rank, pinned=False) for rank in (0, 0, 1))
    tokens, targets = next(first)
    assert tokens.shape == targets.shape == (2, 16) and tokens.max() < 300
    torch.testing.assert_close(tokens[:, 1:], targets[:, :-1])
    torch.testing.assert_close(next(again)[0], tokens)
    assert not torch.equal(next(other)[0], tokens)


def test_pinned_batches_are_contiguous_so_that_a_gpu_copies_them_from_where_they_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distprof.config.schema import SyntheticDataConfig

    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype))  # as torch's, gaps too
        return pinned[-1].copy_(tensor)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batches = make_batches(make_config(SyntheticDataConfig(name="synthetic")), rank=0, pinned=True)
    for tensor in next(batches) + next(batches):
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().data_ptr() in [each.untyped_storage().data_ptr() for each in pinned]


def test_text_is_its_bytes_file_after_file(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("zweité")
    (tmp_path / "a.py").write_text("first")
    (tmp_path / "c.txt").write_text("not this")
    assert bytes(read_text(make_text(tmp_path)).tolist()) == b"first" + "zweité".encode()
    assert bytes(read_text(make_text(tmp_path / "c.txt")).tolist()) == b"not this"
    # The limit cuts through the two bytes of é, which is no fault of the text.
    assert bytes(read_text(make_text(tmp_path, max_bytes=11)).tolist()) == b"firstzweit\xc3"


def test_the_standard_library_is_the_default() -> None:
    assert len(read_text(make_text(None, max_bytes=5_000))) == 5_000


def test_windows_follow_the_text(tmp_path: Path) -> None:
    text = torch.arange(100, dtype=torch.uint8)
    windows = TextWindows(text, seq_len=10, length=50, seed=3)
    starts = set()
    for index in range(50):
        tokens, targets = windows[index]
        assert tokens.tolist() == list(range(int(tokens[0]), int(tokens[0]) + 10))
        assert targets.tolist() == [value + 1 for value in tokens.tolist()]
        starts.add(int(tokens[0]))
    assert len(starts) > 10 and len(windows) == 50
    torch.testing.assert_close(windows[7], TextWindows(text, seq_len=10, length=50, seed=3)[7])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_gives_batches_of_text(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.py").write_text("abcdefgh" * 100)
    batches = make_batches(make_config(make_text(tmp_path, workers=workers)), rank=0, pinned=False)
    tokens, targets = next(batches)
    assert tokens.shape == (2, 16) and tokens.dtype == torch.int64
    torch.testing.assert_close(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "no such file or folder"),
        ("x.txt", b"", "no file matches"),
        ("a.py", b"ok \xff\xfe not", r"a.py: not UTF-8 at byte 3"),
    ],
)
def test_text_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_text(make_text(tmp_path / name if content is None else tmp_path))


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("short")
    with pytest.raises(UsageError, match="5 bytes of text"):
        make_batches(make_config(make_text(tmp_path)), rank=0, pinned=False)
