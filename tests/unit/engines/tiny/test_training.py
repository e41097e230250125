"""What the rows of a training batch contain, and what each token counts in the loss."""

from types import SimpleNamespace

from engines.tiny.libraries import Libraries
from engines.tiny.training import AnsweredPrompt, opening, token_batches

WITHOUT_TENSORS = Libraries(SimpleNamespace(tensor=lambda rows: rows), None, None)


def test_an_opening_is_the_prompt_and_the_first_tokens_of_its_answer() -> None:
    assert opening(AnsweredPrompt(list(range(90)), 10)) == AnsweredPrompt(list(range(18)), 10)
    short = AnsweredPrompt([1, 2, 3], 2)
    assert opening(short) == short


def test_no_token_predicts_the_beginning_of_a_prompt_and_the_first_of_an_answer_counts_most() -> None:
    batch = next(token_batches(WITHOUT_TENSORS, [AnsweredPrompt([7, 8, 9, 1, 2], 3)], 0.25, seed=0))
    assert batch.rows[0][:5] == [7, 8, 9, 1, 2]
    begin, *rest, first, second = batch.weights[0][5:10]
    assert (begin, rest, second) == (0.0, [0.25, 0.25], 1.0)
    assert first > 1
