"""The screen on a running job: it fits, says the worst, and shows nothing of a file as it is."""

from __future__ import annotations

import io

import pytest
from msgspec import structs
from rich.console import Console

from distprof.analyze import analyze
from distprof.facts.run import Clock
from distprof.facts.stand import RankState
from distprof.render.summary.progress import describe_freshness, describe_progress, draw_times
from distprof.render.terminal.watch_screen import describe_watch_line, fit_watch_screen
from distprof.report.progress import Progress, RankProgress
from distprof.report.report import Report
from tests.factories import MS
from tests.faults.run_folder import make_late_run

HOSTILE = "<b>\x1b]0;owned\x07\u202ename[red]\n$(reboot)"
RUN = make_late_run()


def make_rank(rank: int, **changes: object) -> RankProgress:
    usual = RankProgress(
        rank=rank, state="running", last_step=59, fresh_s=0.4, place=None, step_ns=100.0 * MS, own_ns=80.0 * MS + rank,
        phase_ns=(10.0 * MS, 20.0 * MS, 40.0 * MS, None, 15.0 * MS, 2.0 * MS, 8.0 * MS, 5.0 * MS),
    )  # fmt: skip
    return structs.replace(usual, **changes)  # type: ignore[arg-type]


def make_progress(num_ranks: int = 4, ranks: tuple[RankProgress, ...] | None = None, **changes: object) -> Progress:
    usual = Progress(
        name="job", ranks=tuple(map(make_rank, range(num_ranks))) if ranks is None else ranks, world_size=num_ranks,
        over=False, clock=Clock.HOST, mean_steps=20, steps_done=60, steps_total=403, interval_ns=100.0 * MS,
        eta_s=34.3, step_times_ns=tuple(100.0 * MS for _ in range(60)),
    )  # fmt: skip
    return structs.replace(usual, **changes)  # type: ignore[arg-type]


def draw(
    progress: Progress, report: Report | None, width: int = 80, height: int = 24, encoding: str = "utf-8"
) -> list[str]:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    console = Console(file=file, width=width, height=height, color_system=None, legacy_windows=False)
    screen = fit_watch_screen(progress, report, console, report_age_s=3.0, problem="", foot="q leaves")
    console.print(screen, end="")
    file.flush()
    return raw.getvalue().decode(encoding).splitlines()


@pytest.mark.parametrize("width", [80, 200])
def test_one_screen_has_everything(width: int) -> None:
    lines = draw(make_progress(), analyze(RUN), width)
    text = "\n".join(lines)
    assert len(lines) <= 24 and max(map(len, lines)) <= width
    for part in (
        "step 60 of 403, 100.0 ms a step, 34 s left", "last rows 0 s old or younger", "▁▁▁▁", "rank 2 is",
        "next: ", "3 s ago", "forward", "rank 3", "q leaves",
    ):  # fmt: skip
        assert part in text, part
    assert "all_gather" not in text  # nobody measured it


def test_where_there_is_no_room_for_both_the_ranks_are_shown_and_not_what_to_do_next() -> None:
    progress = make_progress(2, (make_rank(0), make_rank(1)))
    whole = draw(progress, analyze(RUN))
    short = draw(progress, analyze(RUN), height=len(whole) - 1)
    assert len(short) < len(whole) and "next: " not in "\n".join(short)
    assert [line for line in whole if line.startswith("rank ")] == [line for line in short if line.startswith("rank ")]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 12), (20, 6)])
def test_of_many_ranks_the_worst_and_the_median_are_shown(width: int, height: int) -> None:
    ranks = tuple(make_rank(rank) for rank in range(1024))
    ranks = (*ranks[:7], make_rank(7, state="gone"), *ranks[8:500], make_rank(500, own_ns=95.0 * MS), *ranks[501:])
    lines = draw(make_progress(1024, ranks), analyze(RUN), width, height)
    assert max(map(len, lines)) <= width
    if width < 80:
        return
    table = [line for line in lines if line.startswith(("rank ", "median "))]
    assert len(lines) <= height and [line.split()[1] for line in table[:2]] == ["7", "500"]
    assert "gone" in table[0] and table[-1].startswith("median of 1,024") and "80.0" in table[-1] and len(table) <= 9


def test_what_comes_from_files_is_only_text() -> None:
    report = structs.replace(analyze(RUN), name=HOSTILE, strategy=HOSTILE)
    for shown in (report, None):
        text = "\n".join(draw(make_progress(name=HOSTILE), shown))
        assert "<b>name[red] $(reboot)" in text and not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "\n" not in describe_watch_line(make_progress(name=HOSTILE), report)


def test_a_terminal_of_ascii_gets_ascii() -> None:
    text = "\n".join(draw(make_progress(step_times_ns=(1e8, 2e8)), analyze(RUN), encoding="ascii"))
    assert "_#  " in text and "?" not in text


def test_bars_show_what_is_more_than_usual_noise() -> None:
    level = make_progress(step_times_ns=(100e6, 102e6, 103e6, 101e6))
    assert draw_times(level, 40, plain=False) == "▁▁▁▁"
    assert draw_times(make_progress(step_times_ns=(100e6,) * 19 + (200e6,) * 21), 40, plain=True) == "_" * 19 + "#" * 21
    spike = make_progress(step_times_ns=(*([100e6] * 99), 900e6))
    assert draw_times(spike, 40, plain=True) == "_" * 32 + "#"  # 100 steps in columns of 3: the last 99, and the spike
    assert draw_times(make_progress(step_times_ns=()), 40, plain=True) == ""


@pytest.mark.parametrize(
    ("fresh_s", "interval_ns", "text"),
    [
        ((0.4, 0.4), 1e8, "last rows 0 s old or younger"), ((0.4, 14.0), 1e8, "rank 1: no step for 14 s"),
        ((31.0, 40.0), 1e8, "no rank has ended a step for 31 s"), ((31.0, 40.0), 30e9, "last rows 40 s old or younger"),
    ],
)  # fmt: skip
def test_how_old_the_rows_are(fresh_s: tuple[float, float], interval_ns: float, text: str) -> None:
    ranks = tuple(make_rank(rank, fresh_s=each) for rank, each in enumerate(fresh_s))
    assert describe_freshness(make_progress(2, ranks, interval_ns=interval_ns)) == text
    missing = describe_freshness(make_progress(2, ranks, interval_ns=interval_ns, world_size=4))
    assert missing == f"{text}; 2 of 4 ranks have written nothing"


@pytest.mark.parametrize("width", [80, 200])
def test_where_ranks_stand_is_shown_once_they_are_silent(width: int) -> None:
    places = [
        RankState(source="place", step=60, inside=True, phase="all_reduce"),
        RankState(source="place", step=60, inside=True, phase=None),
        RankState(source="place", step=59, inside=False, phase=None), None,
    ]  # fmt: skip
    for fresh_s, shown in ((0.4, False), (31.0, True)):
        ranks = tuple(make_rank(rank, fresh_s=fresh_s, place=place) for rank, place in enumerate(places))
        lines = draw(make_progress(4, ranks), analyze(RUN), width)
        assert max(map(len, lines)) <= width and any("stands in step" in line for line in lines) is shown
        ends = [line.split("ago")[1].strip() for line in lines if line.startswith("rank ")]
        assert ends == (["60, all_reduce", "60, in it", "after 59", ""] if shown else [""] * 4)


def test_a_job_without_a_known_end_or_a_step() -> None:
    assert describe_progress(make_progress(steps_total=None, eta_s=None)) == "step 60, 100.0 ms a step"
    text = "\n".join(draw(make_progress(4, (), steps_done=0, interval_ns=None, eta_s=None, step_times_ns=()), None))
    assert "no rank has written anything" in text and "no report yet" in text


def test_how_a_job_has_ended_is_said() -> None:
    ended = tuple(make_rank(rank, state="completed") for rank in range(4))
    assert "the job has completed 60 steps; " in describe_watch_line(make_progress(4, ended, over=True), analyze(RUN))
    killed = (*ended[:2], make_rank(2, state="gone"), make_rank(3, state="failed"))
    text = "\n".join(draw(make_progress(4, killed, over=True), analyze(RUN)))
    assert "the job has ended: ranks 0-1 completed, rank 2 gone without an end (killed?)," in text
