"""Rules that tell evaluation, and other forwards without gradients, from steps, by the calls of made-up programs."""

from __future__ import annotations

import pytest

from distprof.facts.run import FORWARDS_NOTE
from tests.observe.scripts import Model, Script


def test_evaluation_begins_with_eval_and_ends_with_train() -> None:
    script = Script()
    script.train()
    script.fetch(got=False)
    script.set_mode(training=False)
    assert script.told.take() == "begin end begin drop <evaluation"
    assert not script.fetch(grad_on=False)
    assert not script.forward(grad_on=False)
    assert not script.forward(Model(), grad_on=False, has_parameters=False)  # a loss
    script.set_mode(training=True)
    script.train()
    assert script.told.take() == "> begin end"


def test_evaluation_without_eval_begins_with_a_forward_and_ends_with_a_batch() -> None:
    script = Script()
    script.train()
    for _ in range(2):
        assert not script.fetch(grad_on=False)
        assert not script.forward(grad_on=False)
    assert script.told.take() == "begin end <evaluation"
    script.train()
    assert script.told.take() == "> begin end"


def test_evaluation_with_gradients_on_is_told_by_eval() -> None:
    script = Script()
    script.train()
    script.set_mode(training=False)
    script.fetch()
    script.forward()
    script.forward(Model(), has_parameters=False)  # a loss is never put into eval()
    assert script.told.take() == "begin end <evaluation"
    script.set_mode(training=True)
    assert script.told.take() == ">"


def test_a_teacher_without_gradients_is_part_of_the_step() -> None:
    script, teacher = Script(), Model(training=False)
    for _ in range(2):
        script.fetch()
        assert script.forward(teacher, grad_on=False)
        script.train(fetches=False)
    assert script.told.take() == "begin end begin end"


def test_a_model_that_is_trained_in_eval_mode_is_trained() -> None:
    script = Script()
    script.set_mode(training=False)
    for _ in range(2):
        script.train()
        script.set_mode(training=False)  # some loops say so in every step
    assert script.told.take() == "begin end begin end"
    script.forward(grad_on=False)
    assert script.told.take() == "<evaluation"


def test_a_model_frozen_into_eval_mode_later_is_seen_as_training_at_its_backward() -> None:
    script = Script()
    script.train()
    script.set_mode(training=False)
    script.train()
    assert script.told.take() == "begin end <evaluation > begin end"
    script.train()
    assert script.told.take() == "begin end"
    assert not script.told.notes


def test_a_checkpoint_inside_evaluation_does_not_end_it() -> None:
    script = Script()
    script.train()
    script.set_mode(training=False)
    assert script.search.begin_save()
    script.told.end_stretch()
    script.train()
    assert script.told.take() == "begin end <evaluation <checkpoint > > begin end"


def test_forwards_without_gradients_before_every_step_belong_to_it() -> None:
    """As the fakes for a discriminator, or a rollout: twice they may be an evaluation, then they are a habit."""
    script = Script()
    script.train(fetches=False)
    for _ in range(4):
        script.forward(grad_on=False)
        script.train(fetches=False)
    assert script.told.take() == "begin end" + " <evaluation > begin end" * 2 + " begin end" * 2
    script.set_mode(training=False)
    script.forward(grad_on=False)
    script.set_mode(training=True)
    assert script.told.take() == "<evaluation >"


def test_what_comes_before_a_batch_is_no_part_of_the_step() -> None:
    """As the accuracy of the step before."""
    script = Script()
    for _ in range(5):
        script.train()
        script.forward(grad_on=False)
    assert script.told.take() == " ".join(["begin end <evaluation"] + ["> begin end <evaluation"] * 4)


def test_rollouts_now_and_then_stay_apart() -> None:
    script = Script()
    script.train(fetches=False)
    for _ in range(4):
        script.forward(grad_on=False)
        script.train(fetches=False)
        script.train(fetches=False)
    assert script.told.take() == "begin end" + " <evaluation > begin end begin end" * 4


def test_without_an_optimizer_evaluation_and_checkpoints_end_the_step() -> None:
    script = Script(optimizers=0)
    for _ in range(3):
        script.train_by_hand()
    assert script.told.take() == "begin end begin"
    script.set_mode(training=False)
    assert not script.forward(grad_on=False)
    script.set_mode(training=True)
    assert script.told.take() == "end <evaluation >"
    script.train_by_hand()
    assert script.search.begin_save()
    script.told.end_stretch()
    script.train_by_hand()
    assert not script.forward(grad_on=False)  # an evaluation without eval()
    script.search.finish()
    assert script.told.take() == "begin end <checkpoint > begin end <evaluation >"


@pytest.mark.parametrize(("evaluates", "noted"), [((), True), ((2,), False), ((0, 1, 2, 3), False)])
def test_rollouts_are_noted_unless_a_module_was_in_evaluation_mode(evaluates: tuple[int, ...], noted: bool) -> None:
    """Updates by the two after each rollout; in some rounds the model is evaluated besides."""
    script = Script()
    script.train(fetches=False)
    for number in range(4):
        script.forward(grad_on=False)
        script.train(fetches=False)
        script.train(fetches=False)
        if number in evaluates:
            script.set_mode(training=False)
            script.forward(grad_on=False)
            script.set_mode(training=True)
    script.search.finish()
    assert (FORWARDS_NOTE in script.told.notes) == noted
    assert script.told.text.count("<evaluation") == 4 + len(evaluates)


def test_a_training_without_forwards_between_steps_notes_nothing_of_them() -> None:
    script = Script()
    for _ in range(3):
        script.train()
    script.search.finish()
    assert script.told.notes == []
