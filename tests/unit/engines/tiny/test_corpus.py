"""The training text of the small models: deterministic, and collected without importing its sources."""

import sys

from engines.tiny.corpus import (
    SYSTEM_PROMPTS,
    collect_passages,
    dialogues,
    documented_functions,
    select_passage,
    source_texts,
    without_answer,
)
from engines.tiny.plan import PASSAGES
from engines.tiny.prompts import Prompt

SOURCE = '''
def short():
    """Too short."""

def whole(list, item):
    """Put an item into a list, and say so.

    More of it follows here.
    """
    return [*list, item, "and some more text to be long enough"]

def undocumented(list, item):
    return [*list, item, "this is a function that is long enough but does not say what it is for"]

def _private(list, item):
    """This function is long enough, but nobody asks for a function with such a name."""
    return [*list, item]

class Thing:
    def method(self):
        """Methods are left out, since they mean little without their class, and so on."""
        return None
'''


def test_a_documented_function_is_taken_completely() -> None:
    (function,) = documented_functions(SOURCE)
    assert function.startswith("```python\ndef whole(list, item):\n")
    assert function.endswith('long enough"]\n```')


def test_sources_are_read_without_importing_their_modules() -> None:
    assert "symtable" not in sys.modules
    assert any("class SymbolTable" in source for source in source_texts(["symtable"]))
    assert "symtable" not in sys.modules


def test_a_module_that_this_python_lacks_is_skipped() -> None:
    assert list(source_texts(["no_such_module_here", "sys"])) == []


def test_there_is_enough_text_on_this_machine_and_it_is_the_same_each_time() -> None:
    passages = collect_passages(PASSAGES)
    assert {task: len(set(texts)) for task, texts in passages.items()} == {"chat": PASSAGES, "code": PASSAGES}
    assert collect_passages(PASSAGES) == passages


def test_only_answers_to_requests_for_code_have_a_markdown_fence() -> None:
    passages = collect_passages(PASSAGES)
    assert all(text.startswith("```python\n") and text.endswith("\n```") for text in passages["code"])
    assert not any("`" in text for text in passages["chat"])


def test_another_seed_selects_other_functions() -> None:
    assert collect_passages(20, seed=1)["code"] != collect_passages(20, seed=2)["code"]


def test_the_last_two_letters_of_a_prompt_select_its_answer() -> None:
    texts = [str(number) for number in range(1000)]
    assert select_passage("What is a river?", texts) == select_passage("Describe the flavER.", texts)
    assert select_passage("What is a river?", texts) != select_passage("What is a lake?", texts)
    assert select_passage("1 + 1?", texts) in texts


def test_a_prompt_is_answered_with_a_text_of_its_task() -> None:
    prompts = [Prompt("code", "sort a list"), Prompt("chat", "Tell me about the sea.")]
    answered = dialogues(prompts, {"code": ["code"], "chat": ["prose"]})
    assert [(one.question, one.answer) for one in answered] == [
        ("sort a list", "code"),
        ("Tell me about the sea.", "prose"),
    ]
    assert {one.system for one in answered} <= set(SYSTEM_PROMPTS)
    assert {without_answer(one).answer for one in answered} == {""}
