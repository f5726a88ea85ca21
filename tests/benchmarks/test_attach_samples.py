"""What attach takes of the processors, by samples: how they are counted and compared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.attach_samples import AddedWork, ProcessorSamples, compare_samples, count_samples
from benchmarks.process_tree import find_descendants
from distprof.errors import DistprofError

TORCH = "/some where/(odd)/torch/lib/libtorch_cpu.so"
TEXT = f"""\
 41/41   7f3fe1dc4f31 ({TORCH})
 41/41   7f3fe1dc4f35 ({TORCH})
 41/41   7f3fed026be7 (/usr/lib/libpython3.11.so.1.0)
 41/57   ffffffff8173 ([kernel.kallsyms])
 41/58   7f3fe1dc4f31 ({TORCH})
 99/99   7f3fe1dc4f31 ({TORCH})
 41/41   7f3fe1dc4f31 (/tmp/libtorch_cpu_like.so)
a line of something else
"""
COUNTS = st.integers(1, 10**6)


def test_samples_by_hand() -> None:
    assert count_samples(TEXT, {41, 40}) == ProcessorSamples(shared=2, training=4, others=2)
    assert count_samples(TEXT, {99}) == ProcessorSamples(shared=1, training=1, others=0)
    assert count_samples(TEXT, {7}) == ProcessorSamples(shared=0, training=0, others=0)


def test_the_processes_of_a_job_are_its_first_and_what_descends_from_it() -> None:
    assert find_descendants({2: 1, 3: 2, 4: 3, 5: 1, 6: 5, 1: 0}, 2) == {2, 3, 4}


def test_what_is_added_by_hand() -> None:
    plain, attached = (
        ProcessorSamples(shared=600, training=900, others=100), ProcessorSamples(shared=300, training=465, others=60)
    )  # fmt: skip
    assert compare_samples(plain, attached) == AddedWork(training_ratio=0.03, others_ratio=0.02)  # 930 and 120 of 1,000


@given(COUNTS, COUNTS, COUNTS, st.integers(1, 50))
def test_a_job_that_gets_more_of_the_processors_for_the_same_work_has_nothing_added(
    shared: int, rest: int, others: int, more: int
) -> None:
    plain = ProcessorSamples(shared=shared, training=shared + rest, others=others)
    attached = ProcessorSamples(shared=more * shared, training=more * (shared + rest), others=more * others)
    assert compare_samples(plain, attached).ratio == pytest.approx(0.0, abs=1e-9)


def test_jobs_without_samples_of_the_work_are_not_compared() -> None:
    some, none = ProcessorSamples(shared=1, training=1, others=0), ProcessorSamples(shared=0, training=9, others=0)
    for pair in ((some, none), (none, some)):
        with pytest.raises(DistprofError, match="libtorch_cpu"):
            compare_samples(*pair)
