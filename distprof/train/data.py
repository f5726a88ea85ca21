"""Batches of tokens: random, or the bytes of any text."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from distprof.config.schema import Config, TextDataConfig
from distprof.errors import UsageError

Batch = tuple[Tensor, Tensor]
"""Input tokens and target tokens, int64 ``[micro_batch, seq_len]`` each, on the CPU."""


def make_batches(config: Config, *, rank: int, pinned: bool) -> Iterator[Batch]:
    """An endless stream of batches, different on every rank.

    Args:
        config: Group ``data``, and sizes from group ``train``.
        rank: Seeds this rank's share.
        pinned: Whether batches lie in page-locked memory, from which a GPU copies asynchronously.

    Raises:
        UsageError: The text cannot be read, or is shorter than one sequence.
    """
    train = config.train
    if not isinstance(config.data, TextDataConfig):
        return _repeat(_random_batches(config, rank=rank, pinned=pinned))
    dataset = TextWindows(
        read_text(config.data), seq_len=train.seq_len, length=1 << 24, seed=config.seed * 1_000_003 + rank
    )
    loader: DataLoader[Batch] = DataLoader(
        dataset, batch_size=train.micro_batch, num_workers=config.data.workers, pin_memory=pinned,
        persistent_workers=config.data.workers > 0,
        multiprocessing_context="fork" if config.data.workers > 0 else None,
    )  # fmt: skip
    return iter(loader)


def _random_batches(config: Config, *, rank: int, pinned: bool, number: int = 8) -> list[Batch]:
    train = config.train
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + rank)
    shape = (number, train.micro_batch, train.seq_len + 1)
    windows = torch.randint(train.model.vocab_size, shape, generator=generator)
    # torch copies what is not contiguous into pageable memory first, and then waits for the GPU.
    tokens, targets = windows[:, :, :-1].contiguous(), windows[:, :, 1:].contiguous()
    if pinned:
        tokens, targets = tokens.pin_memory(), targets.pin_memory()
    return list(zip(tokens, targets, strict=True))


def _repeat(batches: list[Batch]) -> Iterator[Batch]:
    while True:
        yield from batches


def read_text(config: TextDataConfig) -> Tensor:
    """The text as bytes, uint8 ``[num_bytes]``.

    Raises:
        UsageError: No file, or not UTF-8; names the file and the byte.
    """
    root = Path(config.path) if config.path is not None else Path(sysconfig.get_path("stdlib"))
    if not root.exists():
        raise UsageError(f"data.path={root}: no such file or folder")
    files = [root] if root.is_file() else sorted(path for path in root.glob(config.glob) if path.is_file())
    if not files:
        raise UsageError(f"data.path={root}: no file matches data.glob={config.glob}")
    parts: list[bytes] = []
    size = 0
    for path in files:
        try:
            part = path.read_bytes()[: config.max_bytes - size]
        except OSError as error:
            raise UsageError(f"data.path: {path}: {error.strerror}") from None
        _require_utf8(path, part, cut=size + len(part) >= config.max_bytes)
        parts.append(part)
        size += len(part)
        if size >= config.max_bytes:
            break
    return (
        torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if size else torch.empty(0, dtype=torch.uint8)
    )


def _require_utf8(path: Path, part: bytes, *, cut: bool) -> None:
    try:
        part.decode()
    except UnicodeDecodeError as error:
        if not (cut and error.start >= len(part) - 4):  # a character cut off at max_bytes
            raise UsageError(f"data.path: {path}: not UTF-8 at byte {error.start}") from None


class TextWindows(Dataset[Batch]):
    """Windows of ``seq_len`` bytes at random offsets; the same index gives the same window."""

    def __init__(self, text: Tensor, *, seq_len: int, length: int, seed: int) -> None:
        """``text``: uint8 ``[num_bytes]``.

        Raises:
            UsageError: The text is shorter than one window.
        """
        if len(text) <= seq_len:
            raise UsageError(f"data=text: {len(text)} bytes of text for train.seq_len={seq_len}: provide more text")
        self._text, self._seq_len, self._length, self._seed = text, seq_len, length, seed

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        generator = torch.Generator().manual_seed((self._seed << 24) + index)
        start = int(torch.randint(len(self._text) - self._seq_len, (1,), generator=generator))
        window = self._text[start : start + self._seq_len + 1].long()
        return window[:-1], window[1:]
