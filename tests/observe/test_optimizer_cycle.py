"""Where the steps of programs with several optimizers end, counted by hand."""

from __future__ import annotations

import gc

import pytest

from distprof.observe.step_search import StepSearch
from tests.observe.told import Told


class Model:
    training = True

    def __init__(self) -> None:
        self.weight = object()

    def parameters(self) -> list[object]:
        return [self.weight]


class Optimizer:
    def __init__(self, *models: Model) -> None:
        self.param_groups = [{"params": model.parameters()} for model in models]


class Program:
    """Optimizers by letter, each with a model of the same letter, all made before the first step.

    The lines of a script are letters: ``D`` is a forward of D's model, a backward and D's step; ``b`` a batch. In
    ``calls``, other models that such a forward calls. What comes out has ``[`` where a step begins, ``]`` where it
    ends, and ``)`` where it is dropped.
    """

    def __init__(self, letters: str = "", **calls: str) -> None:
        self.told, self.calls = Told(), calls
        self.search = StepSearch(self.told)
        self.models: dict[str, Model] = {}
        self.optimizers: dict[str, Optimizer] = {}
        for letter in letters:
            self.make(letter)

    def make(self, letter: str, models: str = "") -> None:
        for each in models or letter:
            self.models.setdefault(each, Model())
        made = Optimizer(*(self.models[each] for each in models or letter))
        self.optimizers[letter] = made
        self.search.make_optimizer(made)

    def run(self, lines: str) -> str:
        for letter in lines.replace(" ", ""):
            if letter == "b":
                self.search.begin_fetch(grad_on=True)
                self.told.log.append("b")
            else:
                self.train(letter)
        told = self.told.take().replace("begin", "[").replace("end", "]").replace("drop", ")")
        return told.replace(" ", "")

    def train(self, letter: str) -> None:
        for name in self.calls.get(letter, "") + letter:
            if name in self.models:
                self.search.begin_forward(self.models[name], grad_on=True, has_parameters=True)
                self.search.end_forward()
        self.search.begin_backward()
        self.search.begin_optimizer()
        self.told.log.append(letter)
        self.search.end_optimizer(self.optimizers[letter])

    def finish(self) -> str:
        self.search.finish()
        return self.run("")


@pytest.mark.parametrize(("letters", "lines", "steps"), [
    ("DG", "DG DG DG", "[DG][DG][DG]"),
    ("GD", "DG DG DG", "[DG][DG][DG]"),
    ("GD", "bDG bDG", "[bDG][bDG]"),
    ("DG", "DDDDDG DDDDDG", "[DDDDDG][DDDDDG]"),
    ("DG", "bDbDbDG bDbDbDG", "[bDbDbDG][bDbDbDG]"),  # the critic fetches in an inner loop
    ("DG", "bDbDbDbDbDG bDbDbDbDbDG", "[bDbDbDbDbDG][bDbDbDbDbDG]"),
    ("DG", "bDG bD bD bD bD bDG bD", "[bDG][bDbDbDbDbDG][bD"),  # in every fifth batch, both
    ("AB", "bAB bAB", "[bAB][bAB]"),
    ("ABCD", "ABCD ABCD", "[ABCD][ABCD]"),
    ("QA", "QQA QQA", "[QQA][QQA]"),  # a delayed actor
], ids=str)  # fmt: skip
def test_a_step_is_a_whole_cycle_from_the_first_on(letters: str, lines: str, steps: str) -> None:
    assert Program(letters, D="G", G="D", Q="A", A="Q").run(lines) == steps


def test_the_generator_may_take_two_steps() -> None:
    """Whether another one follows is known after the first cycle only."""
    assert Program("DG", D="G", G="D").run("DGG DGG DGG") == "[DG][G][DGG][DGG]"


def test_one_step_less_of_the_last_one_is_learnt_too() -> None:
    assert Program("DG", D="G").run("DGG DGG DG DG DG") == "[DG][G][DGG][DGDG][DG]"


def test_an_ender_that_goes_on_alone_ends_every_step() -> None:
    assert Program("DG", D="G").run("DG" + "G" * 12) == "[DG]" + "[G]" * 12


def test_an_optimizer_whose_model_is_not_called_is_not_waited_for_beyond_a_batch() -> None:
    program = Program("AU")
    assert program.run("bA bA bA") == "[bA][bA][bA]"
    program = Program("AU")
    assert program.run("bA") + program.finish() == "[bA]", "the program is over before the next batch"


def test_an_optimizer_that_is_never_used_is_waited_for_in_eight_steps_at_most() -> None:
    program = Program("AU", A="U")
    assert program.run("A" * 12) == "[" + "A" * 9 + "][A][A][A]"
    program = Program("AU", A="U")
    assert program.run("A" * 3) + program.finish() == "[AAA]", "so that a short program has a step at all"


def test_optimizers_of_the_same_parameters_replace_each_other() -> None:
    program = Program("A")
    program.make("W", "A")  # Adam first, then L-BFGS
    assert program.run("AAA WW AA") == "[A][A][A][W][W][AA"
    program = Program("A")
    program.make("S", "A")  # as of a wrapper around another optimizer (SAM)
    assert program.run("AAAA") == "[A][A][A][A]"


@pytest.mark.parametrize("kept", [True, False])
def test_an_optimizer_may_be_made_anew(kept: bool) -> None:
    program, all_kept = Program("A"), []
    for _ in range(3):
        assert program.run("bAbA") == "[bA][bA]"
        if kept:
            all_kept.append(program.optimizers["A"])
        program.make("A")
    gc.collect()
    assert program.run("bAbA") == "[bA][bA]"


@pytest.mark.parametrize("kept", [True, False])
def test_both_optimizers_of_a_gan_may_be_made_anew(kept: bool) -> None:
    program, all_kept = Program("DG", D="G"), []
    for _ in range(3):
        assert program.run("bDG bDG") == "[bDG][bDG]"
        if kept:
            all_kept.append(dict(program.optimizers))
        program.make("D")
        program.make("G")


def test_an_optimizer_made_in_every_step_ends_it() -> None:
    program = Program("A")
    for _ in range(3):
        assert program.run("b") == "[b"
        program.make("A")
        assert program.run("A") == "A]"


def test_blocks_of_one_optimizer_and_then_of_the_other() -> None:
    program = Program("AB")
    assert program.run("A" * 20) == "[" + "A" * 9 + "]" + "[A]" * 11
    assert program.run("B" * 20 + "A" * 20 + "B" * 20) == "[B]" * 20 + "[A]" * 20 + "[B]" * 20


def test_blocks_with_batches_have_a_step_for_each() -> None:
    program = Program("AB")
    found = program.run("".join(f"b{letter}" * 50 for letter in "ABABAB"))
    assert found.startswith("[bA][bA][bA]")
    assert found.count("]") == 300


@pytest.mark.parametrize("num_before", [3, 30])
def test_pretraining_of_the_generator_before_both(num_before: int) -> None:
    program = Program("DG")
    found = program.run("bG" * num_before)
    program.calls = {"D": "G", "G": "D"}
    found += program.run("bDG" * 5)
    assert found == "[bG]" * num_before + "[bDG]" * 5


def test_a_cycle_does_not_straddle_a_batch() -> None:
    program = Program("G")
    program.run("bG" * 30)
    program.make("D")
    assert program.run("bGD bGD bGD bGD") == "[bG][D][bGD][bGD][bGD]"


def test_the_inner_loop_of_meta_learning_is_part_of_the_step() -> None:
    program = Program("M")
    for _ in range(3):
        found = program.run("b")
        for _ in range(2):  # tasks
            program.make("I")
            found += program.run("III" + "b")
        assert found + program.run("M") == "[b" + "IIIb" * 2 + "M]"


def test_an_optimizer_that_is_used_no_more_is_not_waited_for() -> None:
    program = Program("DG", D="G")
    program.run("DG DG")
    assert program.run("D" * 67) == "[" + "D" * 65 + "][D][D]"


def test_an_optimizer_inside_backward_is_not_waited_for() -> None:
    program = Program("AB", A="B")
    program.search.cycle.discard(program.optimizers["B"])
    assert program.run("AA") == "[A][A]"
