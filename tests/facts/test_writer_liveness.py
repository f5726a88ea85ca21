"""Whether the writer of a file lives is told by the kernel, not by a clock."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from distprof.facts.writer_liveness import LastWrite, look_at_writer
from distprof.storage.rank_stream import StreamWriter, read_stream
from tests.factories import make_info

HOLD = """
import os, sys
from distprof.facts.writer_liveness import hold
print(hold(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)), flush=True)
if os.fork() == 0:  # as the workers of a data loader: they may outlive the rank
    os.close(1)
    os.read(0, 1)
    os._exit(0)
os.read(0, 1)
"""


def look(path: Path, *, held: bool = True, host: object = None) -> LastWrite:
    header = {"held": held, "info": {"host": socket.gethostname() if host is None else host}}
    with path.open("rb") as file:
        return look_at_writer(file.fileno(), header)


def test_a_writer_lives_until_it_dies_even_if_its_children_go_on(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "True\n"
        assert [look(path).writer_lives for _ in range(2)] == [True, True]  # looking changes nothing
        assert look(path, host="elsewhere").writer_lives is True
        assert look(path, held=False).writer_lives is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert look(path).writer_lives is False
        assert look(path, host=f"{socket.gethostname()} (2)").writer_lives is False  # of several hosts of this name
        assert look(path, host="elsewhere").writer_lives is None  # its locks may not reach us
    finally:
        process.stdin.close()


def test_a_rank_that_reads_its_own_file_shows_again_that_it_lives(tmp_path: Path) -> None:
    ask = "import sys; from distprof.facts.writer_liveness import is_held; print(is_held(0))"

    def is_held_for_others() -> str:
        number = os.open(path, os.O_RDONLY)  # which is not closed here: that would release the lock
        opened.append(number)
        return subprocess.run([sys.executable, "-c", ask], stdin=number, capture_output=True, text=True).stdout.strip()

    opened, path = list[int](), tmp_path / "rank-00000.jsonl"
    writer = StreamWriter(path, run_id="r", world_size=1, info=make_info(0, ended=None))
    assert is_held_for_others() == "True"
    read_stream(path)
    assert is_held_for_others() == "False"  # the kernel releases it as soon as this process closes the file once
    writer.hold()
    assert is_held_for_others() == "True"
    writer.close()
    assert is_held_for_others() == "False"
    for number in opened:
        os.close(number)


def test_the_time_of_the_last_write_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (0, 1_700_000_000.75))
    found = look(tmp_path / "a")
    assert found.at_utc == "2023-11-14T22:13:20+00:00" and found.ago_s > 1e6
    os.utime(tmp_path / "a", (0, 2**40))  # the clock of a file server, or a joker
    assert look(tmp_path / "a").ago_s == 0
