"""Run folders with records that no rank would write, behind valid checksums."""

from __future__ import annotations

import copy
import functools
import json
import random
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.fuzz.streams_sound import make_sound_run
from benchmarks.fuzz.values import NUMBERS, SCALARS, Twin, draw_value, dump, mutate
from distprof.facts.plain import make_plain
from distprof.storage.record_lines import FIELDS, decode_line
from distprof.storage.run_folder import SCHEMA

Record = dict[Any, Any]
OTHER_FILES = (
    "ranks/rank-00000.jsonl.bak", "ranks/flight_recorder-rank-00000.json", "ranks/rank-99999.jsonl", "report.json",
    "ranks/rank-000000.jsonl", "kernels/rank-00000.json.gz", "kernels/rank-00000.json", "kernels/x.sqlite",
    "config.yaml", "ranks/d/rank-00000.jsonl",
)  # fmt: skip
MANY_RANKS, MANY_STEPS = 40, 120
MAX_BYTES = 50_000_000
SCALAR_RATIO = 0.04


class Folder:
    """A run folder before it is written: its metadata, and the records of every file."""

    def __init__(self) -> None:
        meta, ranks = _read_sound()
        self.meta: Record = json.loads(meta)
        self.files: dict[str, list[Any]] = {name: [json.loads(text) for text in texts] for name, texts in ranks}
        self.extra: dict[str, bytes] = {}
        """Other files, by path."""

    def pick_file(self, draws: random.Random) -> list[Any]:
        return self.files[draws.choice(list(self.files))]

    def pick_records(self, kind: str, draws: random.Random) -> list[Record]:
        """Records of one type, of one rank or of all."""
        files = list(self.files.values()) if draws.random() < 0.3 else [self.pick_file(draws)]
        return [one for file in files for one in file if isinstance(one, dict) and one.get("type") == kind]

    def write(self, folder: Path) -> None:
        """Writes the folder, or as many files as fit into `MAX_BYTES`: more only take longer to read."""
        written = 0
        (folder / "ranks").mkdir(parents=True)
        (folder / "run.json").write_bytes(_encode(self.meta))
        for name, records in self.files.items():
            if written > MAX_BYTES:
                break
            lines = [one if isinstance(one, bytes) else add_checksum(_encode(one)) for one in records]
            written += (folder / "ranks" / name).write_bytes(b"".join(lines))
        for path, content in self.extra.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)


@functools.cache
def _read_sound() -> tuple[str, list[tuple[str, list[str]]]]:
    """The texts of a sound folder; every case decodes them anew, because it changes them."""
    with tempfile.TemporaryDirectory(prefix="distprof-fuzz-") as name:
        meta, files = make_sound_run(Path(name))
        ranks = []
        for path in files:
            records = [decode_line(line) for line in path.read_bytes().splitlines(keepends=True)]
            ranks.append((path.name, [json.dumps(record) for record in records]))
    return json.dumps({"schema": SCHEMA, **make_plain(meta)}), ranks


def _encode(value: Any) -> bytes:
    return dump(value).encode("utf-8", "replace")


def add_checksum(text: bytes) -> bytes:
    """A record as a line with its checksum."""
    body = text[:-1]
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def make_stream_case(folder: Path, draws: random.Random) -> list[str]:
    """Writes a changed run folder. Returns the changes."""
    made = Folder()
    told = []
    for _ in range(draws.choice((1, 1, 1, 2, 2, 3, 5))):
        change = draws.choices(list(CHANGES), list(CHANGES.values()))[0]
        told.append(change(made, draws))
    if draws.random() < SCALAR_RATIO:
        told.append(change_top(made, draws))
    made.write(folder)
    return told


def change_top(made: Folder, draws: random.Random) -> str:
    """Puts something that is no object in the place of run.json, or of lines of a stream."""
    value = draws.choice(SCALARS)
    if draws.random() < 0.3:
        made.meta = value
        return f"run.json is {str(value)[:40]}"
    lines, which = made.pick_file(draws), draws.choice((slice(0, 1), slice(-1, None), slice(None), slice(1, None, 2)))
    lines[which] = [value] * len(lines[which])
    return f"lines {which} are {str(value)[:40]}"


def change_record(made: Folder, draws: random.Random) -> str:
    """Changes one value in a record of some type, or in run.json."""
    kind = draws.choice(("header", "step", "group", "order", "end", "run.json"))
    trees = [made.meta] if kind == "run.json" else made.pick_records(kind, draws)
    if not trees:
        return "nothing"
    seed = draws.random()
    chosen = trees if draws.random() < 0.3 else [draws.choice(trees)]
    said = [mutate(tree, random.Random(seed)) for tree in chosen]
    return f"{kind}: {said[0]}"


def change_column(made: Folder, draws: random.Random) -> str:
    """Changes one field of all steps."""
    name, value = draws.choice(FIELDS), draw_value(draws)
    for record in made.pick_records("step", draws):
        row = record.get("row")
        if isinstance(row, list) and len(row) == len(FIELDS) and draws.random() < 0.8:
            row[FIELDS.index(name)] = value
    return f"step: {name} is {str(value)[:40]}"


def scale_times(made: Folder, draws: random.Random) -> str:
    """Scales all times of one rank, or of all, by the same factor."""
    by = 10.0 ** draws.randrange(-9, 12)
    indexes = [index for index, name in enumerate(FIELDS) if name.endswith("_ns")]
    for record in made.pick_records("step", draws):
        row = record.get("row")
        if isinstance(row, list) and len(row) == len(FIELDS):
            for index in indexes:
                if isinstance(row[index], int | float) and abs(row[index]) < 1e250:
                    row[index] = int(row[index] * by) if draws.random() < 0.9 else row[index] * by
    return f"step: times by {by:g}"


def change_steps(made: Folder, draws: random.Random) -> str:
    """Renumbers the steps: different on every rank, all equal, backwards, or huge."""
    how = draws.choice(("apart", "same", "backwards", "huge", "gaps"))
    for rank, file in enumerate(made.files.values()):
        rows = [one["row"] for one in file if isinstance(one, dict) and isinstance(one.get("row"), list) and one["row"]]
        for nth, row in enumerate(rows):
            row[0] = {
                "apart": 1000 * rank + nth, "same": 3, "backwards": len(rows) - nth, "huge": 2**52 + nth,
                "gaps": nth * 10**14,
            }[how]  # fmt: skip
    return f"step: numbers {how}"


def change_lines(made: Folder, draws: random.Random) -> str:
    """Removes, repeats, moves, damages or replaces lines."""
    file = made.pick_file(draws)
    if not file:
        return "nothing"
    at = draws.randrange(len(file))
    how = draws.choice(("lose", "twice", "shuffle", "from another", "cut", "garbage", "long", "empty", "bare"))
    if how == "lose":
        del file[at : at + draws.choice((1, 5, 500))]
    elif how == "twice":
        file[at:at] = copy.deepcopy(file[at : at + draws.choice((1, 30))])
    elif how == "shuffle":
        draws.shuffle(file)
    elif how == "from another":
        file.append(copy.deepcopy(draws.choice(made.pick_file(draws) or [{}])))
    else:
        file[at] = {
            "cut": b'{"type":"step","row":[1,2', "garbage": draws.randbytes(200), "long": b"x" * 3_000_000,
            "empty": b"\n" * 50, "bare": add_checksum(draws.choice((b"{}", b"[]", b'"x"', b"{\"type\":[]}", b"\xff}"))),
        }[how]  # fmt: skip
    return f"lines: {how}"


def change_world(made: Folder, draws: random.Random) -> str:
    """Changes the job's size consistently in all files, and the ranks' numbers."""
    size = draws.choice((1, 2, 4, 1000, 10**6, 10**6 + 1, 0, -1))
    made.meta["world_size"] = size
    for record in (one for file in made.files.values() for one in file if isinstance(one, dict)):
        if record.get("type") == "header":
            record["world_size"] = size
    return f"world of {size}"


def rename_rank(made: Folder, draws: random.Random) -> str:
    """Gives a file another rank's name, consistently or not."""
    name = draws.choice(list(made.files))
    rank = draws.choice((0, 1, 2, 7, 99_999, 100_000, 999_999, 10**8))
    file = made.files.pop(name)
    if draws.random() < 0.7:
        for one in file:
            if isinstance(one, dict) and isinstance(one.get("info"), dict):
                one["info"]["rank"] = rank
    other = draws.choice((f"rank-{rank:05d}.jsonl", f"rank-{rank:06d}.jsonl", f"rank-{rank}.json", "x", "rank-x.jsonl"))
    made.files[other] = file
    return f"{name} as {other}"


def add_ranks(made: Folder, draws: random.Random) -> str:
    """Adds many ranks with few steps, of which no two ranks share any."""
    sound = next(iter(made.files.values()))
    count, steps = draws.choice(((8, 20), (MANY_RANKS, MANY_STEPS))) if draws.random() < 0.2 else (6, 12)
    template = next((one for one in sound if isinstance(one, dict) and isinstance(one.get("row"), list)), None)
    header = next((one for one in sound if isinstance(one, dict) and isinstance(one.get("info"), dict)), None)
    if template is None or header is None or not template["row"]:
        return "nothing"
    made.meta["world_size"] = count
    made.files = {}
    apart = draws.choice((0, 1, steps, 10**6))
    for rank in range(count):
        rows = [[rank * apart + step, *template["row"][1:]] for step in range(steps)]
        records = [{**header, "world_size": count, "info": {**header["info"], "rank": rank}}]
        records += [{"type": "step", "row": row} for row in rows]
        made.files[f"rank-{rank:05d}.jsonl"] = records
    return f"{count} ranks of {steps} steps, {apart} apart"


def change_order(made: Folder, draws: random.Random) -> str:
    """Gives steps very many collectives, or none, on one rank or on all."""
    number = draws.choice((0, 1, 33, 1024, 1025, 5000))
    kind, phase = draws.choice(("all_reduce", "other", "all_gather")), draws.choice(("backward", "other", "data"))
    size = draws.choice((8, 2**62, 2**70))
    for record in made.pick_records("order", draws):
        record["collectives"] = [[kind, 0, phase, size]] * number
    for record in made.pick_records("step", draws):
        times = [draws.choice((1, 10**6, 2**60)) for _ in range(number)]
        record["collectives"] = [0, times, times, times]
    return f"orders of {number}"


def change_segments(made: Folder, draws: random.Random) -> str:
    """Makes timelines longer than their step, or with very many segments."""
    number = draws.choice((0, 1, 128, 129, 20_000))
    value = draws.choice((0, 1, 10**9, 2**62, 2**63 - 1))
    begin = draws.choice((0, -5, 10**18, 2**63, 2**80, 1.5))
    text = draws.choice((f"{value:x}", "-1", "1_0", "\u0661", ""))
    durations = draws.choice(([value] * number, " ".join([text] * number)))
    first = draws.choice(([begin], []))
    for record in made.pick_records("step", draws):
        record["segments"] = [*first, "7" * number, durations]
    return f"{number} segments of {value}"


def add_files(made: Folder, draws: random.Random) -> str:
    """Adds other files to the folder."""
    path = draws.choice(OTHER_FILES)
    trace = b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1}]}'
    text = draws.choice((b"", b"{}", trace, b"SQLite format 3\0", draws.randbytes(300), b"{" * 10_000))
    made.extra[path] = text
    return f"and {path}"


def change_fields(made: Folder, draws: random.Random) -> str:
    """Changes the header's list of row fields: another order, repeated names, names of another type."""
    for record in made.pick_records("header", draws):
        fields = record.get("fields")
        if not isinstance(fields, list) or not fields:
            continue
        how = draws.randrange(5)
        if how == 0:
            draws.shuffle(fields)
        elif how == 1:
            fields[draws.randrange(len(fields))] = draws.choice(fields)
        elif how == 2:
            fields[draws.randrange(len(fields))] = draw_value(draws)
        elif how == 3:
            record["fields"] = [f"x{index}" for index in range(len(fields))]
        else:
            record[Twin("fields")] = draw_value(draws)
    return "header: fields"


def change_readings(made: Folder, draws: random.Random) -> str:
    """Makes the readings of clocks and links contradictory."""
    for name in ("clock_readings", "link_readings"):
        found = made.meta.get(name)
        for reading in found if isinstance(found, list) else ():
            if isinstance(reading, dict) and reading and draws.random() < 0.5:
                reading[draws.choice(list(reading))] = draws.choice(NUMBERS)
    return "run.json: readings"


CHANGES: dict[Callable[[Folder, random.Random], str], int] = {
    change_record: 40, change_column: 10, scale_times: 3, change_steps: 3, change_lines: 6, change_world: 2,
    rename_rank: 3, add_ranks: 2, change_order: 3, change_segments: 3, add_files: 4, change_fields: 4,
    change_readings: 4,
}  # fmt: skip
"""With the weight of each."""
