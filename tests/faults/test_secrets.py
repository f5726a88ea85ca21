"""Secrets of every kind, wherever a job can have them: none is in what distprof leaves or says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.config.made_secrets import LINES, MADE, PEM, PLACED, grow
from tests.faults.forked import Command, Done, run

SCRIPT = """
import os, sys, torch, distprof
from torch import nn
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
settings = {"argv": sys.argv, "env": dict(os.environ), "headers": ["Authorization", os.environ["HEADER"]]}
options = {"run_dir": "watched", "loggers": ["wandb"], "warmup_steps": 0, "config": settings}
with distprof.start("job " + " ".join(sys.argv[1:]), **options) as profiler:
    for _ in profiler.steps(range(3)):
        profiler.phase(" ".join(sys.argv[1:3]))
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    said = " ".join(sys.argv[1:]) + " with " + os.environ["SETTINGS"] + os.environ["HEADER"]
    raise RuntimeError("no answer to " + said)
"""
ATTACH = "import sys; from distprof.attach.command import attach; attach(sys.argv[1:]); raise SystemExit(0)"
"""Instead of the command, in the same process."""
NAMED = ("pwd", "dbPassword", "tokens", "creds", "dsn", "connection_string", "jwt", "pat", "accountKey")


def list_made() -> list[str]:
    """A secret of every kind, in a text that gives it away."""
    placed = [before + secret for examples in PLACED.values() for before, secret in examples[:1]]
    return [*(examples[0] for examples in MADE.values()), *placed]


def find_left(root: Path, said: str) -> list[str]:
    """Where a made-up secret is left: each of them has some of this in it."""
    spellings = ("c4nary", "C4NARY", grow(12, "c4e7a09bd1f2"), grow(8, "471920"), LINES[0][8:24])
    texts = {"said": said, "names": "\n".join(map(str, root.rglob("*")))}
    for path in root.rglob("*"):
        if path.is_file() and path.name != "train.py":
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            texts[str(path.relative_to(root))] = data.decode(errors="replace")
    return [f"{spelling} in {where}" for where, text in texts.items() for spelling in spellings if spelling in text]


def read_own_lines(done: Done) -> str:
    """What distprof said; the script's own traceback is Python's."""
    return "\n".join(line for line in (done.out + "\n" + done.err).splitlines() if "distprof: " in line)


@pytest.mark.slow
def test_fault_48_no_secret_is_in_any_file_page_or_line(tmp_path: Path) -> None:
    made = list_made()
    arguments = [f"--{name}=c4nary-{name}-05" for name in NAMED]
    arguments += [
        "--header",
        f"Authorization: Bearer {grow(24)}",
        "--cookie",
        f"sid={grow(20)}; b=c4nary",
        "--pem",
        PEM,
    ]
    settings = {"db": {"password": "c4nary q7"}, "all": made, "pem": PEM}
    environment = {
        "HEADER": f"Bearer {grow(30)}", "SETTINGS": json.dumps(settings),
        "DB_DSN": "c4nary-dsn", "WANDB_MODE": "offline", "HOME": str(tmp_path / "home"),
    }  # fmt: skip
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "home").mkdir()
    own = ["train=gpt2_tiny", "train.steps=2", "train.warmup_steps=0", "logger=none", "hardware.peak=none",
           "device=cpu", "run_dir=own", "inject.rank=0", "inject.action=fail",
           "name=" + json.dumps(" ".join(made[:20]))]  # fmt: skip
    watched = Command(arguments=["train.py", *arguments, *made], environment=environment, before=ATTACH)
    attached, trained = run(watched, Command(arguments=own, environment=environment), cwd=tmp_path)
    assert (attached.code, trained.code) == (1, 1), (attached, trained)
    shown = run(*(Command(arguments=["report", each]) for each in ("watched", "own")), cwd=tmp_path)
    assert [done.code for done in shown] == [3, 3], shown
    said = "\n".join([read_own_lines(attached), trained.out, trained.err, *(done.out + done.err for done in shown)])
    assert find_left(tmp_path, said) == []
    written = (tmp_path / "watched" / "run.json").read_text() + (tmp_path / "watched" / "report.json").read_text()
    assert "Authorization: Bearer [redacted]" in written and "no answer to --pwd=[redacted]" in written
    assert list((tmp_path / "watched").rglob("*.wandb")), "there is a file of W&B, and it was searched"
