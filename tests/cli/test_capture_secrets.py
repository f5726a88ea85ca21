"""Capturing without secrets: in the environment, on the command line, in other processes and in the export."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import string
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distprof.cli.capture import job
from distprof.cli.capture.command import read_request
from distprof.cli.capture.environment import (
    Neighbour,
    clean_environment,
    describe,
    find_neighbours,
    mask_secrets,
    probe_isolation,
    refuse_secrets,
)
from distprof.errors import UsageError


def make_process(proc: Path, pid: int, name: str, environ: bytes | None) -> None:
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "comm").write_text(f"{name}\n")
    if environ is not None:
        (proc / str(pid) / "environ").write_bytes(environ)


def test_neighbours_with_secrets_are_found(tmp_path: Path) -> None:
    make_process(tmp_path, 20, "bash", b"HF_TOKEN=x\0PATH=/bin\0")
    make_process(tmp_path, 3, "init", b"WANDB_API_KEY=y\0A=\xff\0PROXY=http://me:pw@host\0")
    make_process(tmp_path, 4, "sshd", b"SSH_AUTH_SOCK=/tmp/x\0PATH=/bin\0")
    make_process(tmp_path, 5, "of another user", None)
    (tmp_path / "self").mkdir()
    found = find_neighbours(tmp_path)
    assert found == [
        Neighbour(pid=3, name="init", variables=("PROXY", "WANDB_API_KEY")),
        Neighbour(pid=20, name="bash", variables=("HF_TOKEN",)),
    ]
    assert describe(found, limit=1) == "init (pid 3): PROXY, WANDB_API_KEY; and 1 more"


def test_behind_the_wall_no_neighbour_is_seen() -> None:
    if (wall := probe_isolation()) is None:
        pytest.skip("no process namespaces here: neither root nor user namespaces allowed")
    done = subprocess.run(
        [*wall, "/bin/sh", "-c", "cat /proc/[0-9]*/comm; exit 7"], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert (done.returncode, set(done.stdout.split())) == (7, {"sh"}), done.stderr


@pytest.mark.parametrize("wall", [None, ["unshare"]])
@pytest.mark.parametrize("keep", [False, True])
def test_neighbours_are_walled_off_or_refused_or_accepted(
    wall: list[str] | None, keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "find_neighbours", lambda: [Neighbour(pid=1, name="init", variables=("HF_TOKEN",))])
    monkeypatch.setattr(job, "probe_isolation", lambda: wall)
    request = read_request([*(["--keep-secrets"] if keep else []), "--", "x=1"])
    if wall is None and not keep:
        with pytest.raises(UsageError, match=r"init \(pid 1\): HF_TOKEN"):
            job._keep_neighbours_out(request)
    else:
        assert job._keep_neighbours_out(request) == (wall or [])
    monkeypatch.setattr(job, "find_neighbours", list)
    assert job._keep_neighbours_out(request) == []


@settings(max_examples=8)
@given(st.lists(st.text(string.ascii_letters, min_size=20, max_size=200), min_size=1, max_size=4, unique=True))
def test_masked_secrets_leave_no_bytes_in_the_file(secrets: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "export.sqlite"
        base = sqlite3.connect(path)
        base.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        for secret in secrets:
            block = f"A=b\0HF_TOKEN={secret}\0COPY=x{secret}x\0"
            base.execute("INSERT INTO StringIds (value) VALUES (?), ('forward'), ('a=b')", [block])
        base.commit()
        base.close()
        assert mask_secrets(path) == ("COPY", "HF_TOKEN") and mask_secrets(path) == ("COPY", "HF_TOKEN")
        assert not any(secret.encode() in path.read_bytes() for secret in secrets)
        with contextlib.closing(sqlite3.connect(path)) as base:
            kept = [value for (value,) in base.execute("SELECT value FROM StringIds")]
        block = "A=b\0HF_TOKEN=[redacted]\0COPY=[redacted]"
        assert sorted(kept) == sorted([block, "forward", "a=b"] * len(secrets))


SECRETS = (
    "WANDB_API_KEY",
    "HF_TOKEN",
    "DB_PASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "STORAGE_KEY",
    "GH_PAT",
)
PLAIN = (
    "PATH",
    "TOKENIZERS_PARALLELISM",
    "NCCL_DEBUG",
    "MASTER_ADDR",
    "KEYBOARD",
    "AUTHOR",
    "COMPASS",
    "OMP_NUM_THREADS",
)


def test_secret_variables_are_left_out_by_name() -> None:
    clean, dropped = clean_environment(dict.fromkeys((*SECRETS, *PLAIN), "x"))
    assert dropped == tuple(sorted(SECRETS)) and set(clean) == set(PLAIN)


@given(st.text(string.ascii_letters + string.digits + "/+=", min_size=6, max_size=40), st.text(max_size=10))
def test_no_value_of_a_secret_is_left_anywhere(secret: str, around: str) -> None:
    clean, dropped = clean_environment({"HF_TOKEN": secret, "COMMAND": f"{around}{secret}{around}", "OTHER": "x"})
    assert clean == {"OTHER": "x"} and dropped == ("COMMAND", "HF_TOKEN")


def test_a_login_in_a_url_is_left_out_and_a_url_is_not() -> None:
    clean, dropped = clean_environment({"HTTPS_PROXY": "http://me:pw@proxy:3128", "HTTP_PROXY": "http://proxy:3128"})
    assert dropped == ("HTTPS_PROXY",) and "HTTP_PROXY" in clean


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["+logger.password=x"], "logger.password: contains a secret"),
        (["-e", "A=b,HF_TOKEN=x"], "HF_TOKEN: contains a secret"),
        (["--env-var=A=b,HF_TOKEN=x"], "HF_TOKEN: contains a secret"),
        (["logger={password: x}"], "contains a secret"),
        (["data.path=s3://me:pw@host/x"], "data.path: a URL with a login"),
        (["name=run-canary-value"], "the value of SOME_SECRET"),
    ],
)
def test_a_command_line_with_a_secret_is_refused_without_saying_it(arguments: Sequence[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        refuse_secrets(arguments, {"SOME_SECRET": "canary-value"})
    assert (
        "canary-value" not in str(refusal.value) and "=x" not in str(refusal.value) and "pw" not in str(refusal.value)
    )


def test_an_ordinary_command_line_is_no_secret() -> None:
    refuse_secrets(
        [
            "-t",
            "cuda,nvtx",
            "--per-rank",
            "--",
            "train=gpt2_tiny",
            "data.path=https://host/a@b",
            "name=a=b",
            "tokens=3",
        ],
        {"SOME_SECRET": "canary-value", "SHORT_TOKEN": "train"},
    )
