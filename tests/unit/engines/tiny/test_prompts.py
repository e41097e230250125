"""The prompts that the small models are trained on, and those that they are measured with."""

import random
from pathlib import Path

import pytest

from benchmarks.draft_prompts import FORMS_AND_TOPICS, mixed_load, prompts_of
from engines.tiny.chat_prompts import CHAT_FORMS, MATHS_FORMS
from engines.tiny.code_prompts import CODE_FORMS, code_prompt
from engines.tiny.plan import PLAIN_PROMPTS, QUESTIONS
from engines.tiny.prompts import MAX_LENGTH, Prompt, drop_words, plain_prompts, read_prompts, split
from engines.tiny.sentences import third_person


def test_the_labelled_examples_have_hundreds_of_prompts_of_each_task() -> None:
    prompts = list(read_prompts())
    assert min(sum(prompt.task == task for prompt in prompts) for task in ("chat", "code")) > 1000
    assert max(len(prompt.text) for prompt in prompts) <= MAX_LENGTH


def test_without_a_checkout_the_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.jsonl"):
        list(read_prompts(tmp_path / "missing.jsonl"))


def test_plain_prompts_are_distinct_and_the_same_each_time() -> None:
    prompts = plain_prompts(PLAIN_PROMPTS)
    assert len({prompt.text for prompt in prompts}) == len(prompts) == 2 * PLAIN_PROMPTS
    assert plain_prompts(PLAIN_PROMPTS) == prompts


def test_a_prompt_loses_some_of_its_words_and_keeps_their_order() -> None:
    prompts = [Prompt("chat", " ".join(map(str, range(20))))] * 10
    dropped = list(drop_words(prompts))
    assert len({prompt.text for prompt in dropped}) == 10
    for prompt in dropped:
        numbers = [int(word) for word in prompt.text.split()]
        assert numbers == sorted(numbers)
        assert 2 <= len(numbers) < 20


def test_no_prompt_is_in_both_parts_of_a_split() -> None:
    prompts = plain_prompts(PLAIN_PROMPTS)
    trained, asked = split(prompts, QUESTIONS)
    assert len(asked) == QUESTIONS
    assert {prompt.text for prompt in trained}.isdisjoint(prompt.text for prompt in asked)
    assert len(trained) + len(asked) == len(prompts)


def test_no_form_no_topic_and_no_prompt_of_the_benchmark_is_trained_on() -> None:
    forms_trained_on = {*CODE_FORMS, *CHAT_FORMS, *MATHS_FORMS}
    plain = {prompt.text for prompt in plain_prompts(PLAIN_PROMPTS)}
    labelled = {prompt.text for prompt in read_prompts()}
    for kind, (forms, topics) in FORMS_AND_TOPICS.items():
        assert forms_trained_on.isdisjoint([*forms, *(form.replace("{}", "{does}") for form in forms)])
        assert not [topic for topic in topics if any(topic in text for text in plain)]
        assert (plain | labelled).isdisjoint(prompts_of(kind))


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("sort a list", "sorts a list"),
        ("match names", "matches names"),
        ("copy a file", "copies a file"),
        ("display stars", "displays stars"),
        ("open", "opens"),
    ],
)
def test_a_verb_is_put_into_the_third_person(task: str, sentence: str) -> None:
    assert third_person(task) == sentence


def test_prompts_for_code_are_complete_sentences_without_gaps() -> None:
    rng = random.Random(0)
    for _ in range(1000):
        assert not {"{", "}"} & set(code_prompt(rng))


def test_the_load_of_the_benchmark_is_distinct_prompts_of_every_kind() -> None:
    load = mixed_load(200, seed=1)
    assert len({prompt for _, prompt in load}) == len(load) == 200
    assert {kind: sum(one == kind for one, _ in load) for kind in FORMS_AND_TOPICS} == {
        "code": 80,
        "chat": 80,
        "mathematics": 40,
    }
    assert mixed_load(200, seed=1) == load != mixed_load(200, seed=2)
