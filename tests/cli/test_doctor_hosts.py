"""`distprof doctor --all-ranks`: which host is the odd one out, and in what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.cli.doctor.all_ranks import compare_clocks, compare_facts, compare_links
from distprof.cli.parser import run_verb
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports

OTHER_HOST = """
from distprof.record.hosts import clock_sync, link_probe
clock_sync.identify_host = link_probe.identify_host = lambda: "another machine"
"""


def test_the_host_that_has_something_else_is_the_odd_one() -> None:
    hosts = {"a": {"torch": "2.13.0"}, "b": {"torch": "2.11.0", "NCCL_ALGO": "Ring"}, "c": {"torch": "2.13.0"}}
    torch, variable = compare_facts(hosts)
    assert (torch.name, torch.usual, torch.others) == ("torch", "2.13.0", {"b": "2.11.0"})
    assert (variable.name, variable.usual, variable.others) == ("NCCL_ALGO", "none", {"b": "Ring"})


def test_wall_clocks_within_what_the_measurement_can_tell_are_not_apart() -> None:
    offsets = {"a": (0, 0), "b": (3_000_000_000, 50_000), "c": (150_000_000, 60_000_000)}
    (clocks,) = compare_clocks(offsets)
    assert clocks.others == {"b": "+3.000 s (± 0.1 ms)"}
    assert compare_clocks({"a": (0, 0)}) == []


def test_a_link_of_less_than_half_the_usual_speed_is_slow() -> None:
    (links,) = compare_links({"b": 1e9, "c": 1.2e9, "d": 0.4e9})
    assert list(links.others) == ["d"]
    assert compare_links({}) == []


def test_two_hosts_are_compared_in_one_table(tmp_path: Path) -> None:
    (port,) = find_ports(1)
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    arguments = ["doctor", "--all-ranks", "--json", "hosts.json", "--width", "150"]
    first, second = run(
        make_rank(0, 2, port, arguments, **alone),
        make_rank(1, 2, port, arguments, before=OTHER_HOST, NCCL_ALGO="Ring\x1b[31m", **alone),
        cwd=tmp_path,
    )
    assert (first.code, second.code, second.out) == (0, 0, ""), (first, second)
    document = json.loads((tmp_path / "hosts.json").read_text())
    one, other = document["hosts"]
    odd = {fact["name"]: fact["others"] for fact in document["facts"] if fact["others"]}
    assert one != other and set(odd["NCCL_ALGO"]) == {other} and odd["NCCL_ALGO"][other].startswith("Ring")
    assert "link to rank 0's host, gloo" in {fact["name"] for fact in document["facts"]}
    assert "what differs between hosts" in first.out and "NCCL_ALGO" in first.out and "\x1b" not in first.out
    assert "2 hosts: " in first.out


def test_it_says_how_to_start_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["doctor", "--all-ranks"]) == 2
    assert "start it with torchrun, one process per host" in capsys.readouterr().err
