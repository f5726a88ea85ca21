"""Rules that find steps, from the calls of made-up programs."""

from __future__ import annotations

import torch

from distprof.observe.step_search import COMPILED, INFERENCE, NO_OPTIMIZER, UNSEEN_AFTER
from distprof.observe.unseen_updates import UNSEEN
from tests.observe.scripts import Script


def test_a_step_reaches_from_the_batch_to_the_end_of_the_optimizer() -> None:
    script = Script()
    script.train()
    assert script.told.take() == "begin end"
    for _ in range(4):  # micro-steps
        script.fetch()
        script.forward()
        script.backward()
    assert script.told.take() == "begin"
    script.update()
    assert script.told.take() == "end"


def test_an_exhausted_loader_and_an_unused_batch_make_no_step() -> None:
    script = Script()
    script.train()
    script.fetch(got=False)
    assert script.told.take() == "begin end begin drop"
    script.fetch()
    script.search.finish()
    assert script.told.take() == "begin drop"


def test_what_comes_before_the_first_step_begins_none() -> None:
    script = Script(optimizers=0)
    script.fetch()  # statistics of the data
    script.forward(grad_on=False)  # the sizes of the layers
    script.make_optimizer()
    script.set_mode(training=False)
    script.forward(grad_on=False)  # evaluation before training
    script.set_mode(training=True)
    assert script.told.take() == ""
    script.train()
    assert script.told.take() == "begin end"


def test_inference_has_a_step_for_each_batch() -> None:
    script = Script(optimizers=0)
    for _ in range(5):
        script.fetch(grad_on=False)
        script.forward(grad_on=False)
        script.forward(grad_on=False, has_parameters=False)
    script.fetch(grad_on=False, got=False)
    assert script.told.take() == "begin end begin end begin end begin drop"
    assert script.told.notes == [INFERENCE]


def test_inference_without_a_loader_has_a_step_for_each_forward() -> None:
    script = Script(optimizers=0)
    for _ in range(4):
        script.forward(grad_on=False)
    assert script.told.take() == "begin end begin end"


def test_inference_before_training_ends_with_the_first_optimizer() -> None:
    script = Script(optimizers=0)
    for _ in range(4):
        script.fetch(grad_on=False)
        script.forward(grad_on=False)
    script.make_optimizer()
    script.train()
    assert script.told.take() == "begin end begin end warm-up begin end"
    assert len(script.told.notes) == 2


def test_without_an_optimizer_a_step_begins_after_a_backward() -> None:
    script = Script(optimizers=0)
    for _ in range(4):
        script.fetch()
        script.forward()
        script.backward()
    script.search.finish()
    assert script.told.take() == "begin end begin end begin end"
    assert NO_OPTIMIZER in script.told.notes


def test_an_optimizer_whose_steps_are_not_seen_is_given_up() -> None:
    script = Script()
    for _ in range(UNSEEN_AFTER + 3):
        script.forward()
        script.backward()
    assert script.told.take() == "begin end begin end begin"
    assert not script.told.notes, "not yet sure"
    script.search.finish()
    assert script.told.notes == [UNSEEN]


def test_a_forward_that_is_not_seen_is_noted_and_its_time_counts_in_the_step() -> None:
    script = Script()
    for _ in range(2):
        script.backward()
        script.update()
    assert script.told.take() == "begin end begin end begin"
    script.set_mode(training=False)
    script.search.finish()
    assert script.told.take() == "drop"
    assert script.told.notes == [COMPILED]


def test_a_forward_without_gradients_before_the_first_backward_is_seen() -> None:
    """As where embeddings are computed first, and their gradients then."""
    script = Script()
    script.forward(grad_on=False)
    script.backward()
    script.update()
    assert script.told.take() == "begin end"
    assert not script.told.notes


def test_a_checkpoint_is_a_stretch_between_steps_only() -> None:
    script = Script()
    script.fetch()
    assert script.search.begin_save()
    script.told.end_stretch()
    script.forward()
    assert not script.search.begin_save()
    script.backward()
    script.update()
    assert script.told.take() == "begin drop <checkpoint > begin end"


def test_steps_of_somebody_else_are_left_alone() -> None:
    script = Script()
    script.told.user_steps = True
    script.train()
    script.set_mode(training=False)
    script.forward(grad_on=False)
    script.search.finish()
    assert script.told.take() == ""


def test_updates_of_nobody_end_steps() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    script = Script(optimizers=0)
    script.make_optimizer()
    script.optimizers[0].param_groups = [{"params": [weight]}]
    for _ in range(5):
        for _ in range(2):  # micro-steps
            script.forward()
            script.backward()
            script.search.end_backward()
        weight.data -= 1
    script.search.finish()
    assert script.told.take() == "begin end begin end begin end begin end", "the first two are one"
    assert script.told.notes == [UNSEEN]


def test_one_change_of_the_parameters_is_no_update() -> None:
    """The first half of a step of SAM: the parameters are moved, and a second backward follows."""
    weight = torch.nn.Parameter(torch.ones(2))
    script = Script()
    script.optimizers[0].param_groups = [{"params": [weight]}]
    for _ in range(4):
        for change in (1, -1):
            script.forward()
            script.backward()
            script.search.end_backward()
            weight.data += change
        script.update()
    assert script.told.take() == " ".join(["begin end"] * 4)
    assert not script.told.notes


def test_updates_are_seen_where_only_backwards_are() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    script = Script()
    script.optimizers[0].param_groups = [{"params": [weight]}]
    for _ in range(6):
        script.backward()
        script.search.end_backward()
        with torch.no_grad():
            weight -= 1
    script.search.finish()
    assert script.told.take() == " ".join(["begin end"] * 5)
    assert script.told.notes == [COMPILED, UNSEEN]


def test_a_short_program_without_a_step_of_its_optimizer_says_so() -> None:
    script = Script()
    for _ in range(3):
        script.forward()
        script.backward()
    script.search.finish()
    assert script.told.take() == "begin end"
    assert script.told.notes == [UNSEEN]


def test_gradients_of_a_test_before_training_make_no_step() -> None:
    script = Script(optimizers=0)
    script.forward()
    script.backward()
    script.make_optimizer()
    script.train()
    assert script.told.take() == "begin end"
    assert not script.told.notes


def test_cycles_of_different_lengths_are_told() -> None:
    """As where layers are trained one after another; two that take turns from the start are nothing to tell."""
    turns, layers = Script(optimizers=2), Script(optimizers=2)
    for script, order in ((turns, [0, 1] * 20), (layers, [0] * 20 + [1] * 20)):
        for number in order:
            script.forward()
            script.backward()
            script.update(number)
        script.search.finish()
    assert turns.told.notes == []
    (note,) = layers.told.notes
    assert note.startswith("a step is one cycle of the optimizers, and cycles are 1 to 9 optimizer steps long: ")


def test_forwards_of_a_rank_that_never_trains_are_counted() -> None:
    """It has an optimizer that takes no step: no step ends, with batches of a loader or without."""
    for fetches in (False, True):
        script = Script()
        for _ in range(5):
            if fetches:
                script.fetch()
            script.forward(grad_on=False)
        script.search.finish()
        assert script.told.forwards == 5 and "end" not in script.told.log


def test_forwards_of_a_rank_that_trains_are_not() -> None:
    script = Script()
    script.train()
    script.forward(grad_on=False)
    script.train()
    assert script.told.forwards == 0
