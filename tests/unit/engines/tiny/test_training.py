"""What the rows of a training batch contain, and what each token counts in the loss."""

from itertools import islice, repeat
from types import SimpleNamespace

from engines.tiny.libraries import Libraries
from engines.tiny.training import AnsweredPrompt, TrainingSchedule, opening, shortened, shuffled_epochs, token_batches

WITHOUT_TENSORS = Libraries(SimpleNamespace(tensor=lambda rows: rows), None, None)


def test_an_opening_is_the_prompt_and_the_first_tokens_of_its_answer() -> None:
    assert opening(AnsweredPrompt(list(range(90)), 10)) == AnsweredPrompt(list(range(18)), 10)
    short = AnsweredPrompt([1, 2, 3], 2)
    assert opening(short) == short


def test_no_token_predicts_the_beginning_of_a_prompt_and_the_first_of_an_answer_counts_most() -> None:
    batch = next(token_batches(WITHOUT_TENSORS, repeat(AnsweredPrompt([7, 8, 9, 1, 2], 3)), 0.25))
    assert batch.rows[0][:5] == [7, 8, 9, 1, 2]
    begin, *rest, first, second = batch.weights[0][5:10]
    assert (begin, rest, second) == (0.0, [0.25, 0.25], 1.0)
    assert first > 1


def test_a_part_of_a_training_has_that_part_of_the_steps_and_at_least_one() -> None:
    schedule = TrainingSchedule(steps=800, learning_rate=5e-3)
    assert shortened(schedule, 1, None) == schedule
    assert shortened(schedule, 0.1, None) == TrainingSchedule(steps=80, learning_rate=5e-3)
    assert shortened(schedule, 1e-6, 30.0) == TrainingSchedule(steps=1, learning_rate=5e-3, limit_s=30.0)


def test_every_epoch_has_each_example_once_in_another_order() -> None:
    endless = shuffled_epochs(range(40), seed=0)
    first, second = list(islice(endless, 40)), list(islice(endless, 40))
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != second
