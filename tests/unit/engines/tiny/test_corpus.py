"""The training text of the small models: deterministic, and collected without importing its sources."""

import sys

import pytest

from engines.tiny import corpus
from engines.tiny.corpus import (
    Task,
    collect_passages,
    dialogues,
    documented_functions,
    everyday_questions,
    paragraphs,
    source_texts,
)

SOURCE = '''
def short(): pass

def whole(list, item):
    """Put an item into a list, and say so.

    More of it follows here.
    """
    return [*list, item, "and some more text to be long enough"]

def undocumented(list, item):
    return [*list, item, "this is a function that is long enough but does not say what it is for"]

class Thing:
    def method(self):
        """Methods are left out, since they mean little without their class, and so on."""
        return None
'''


def test_a_documented_function_is_taken_completely_with_its_description() -> None:
    (passage,) = documented_functions(SOURCE)
    assert passage.subject == "whole"
    assert passage.does == "put an item into a list, and say so."
    assert passage.text.startswith("```python\ndef whole(list, item):\n")
    assert passage.text.endswith('long enough"]\n```')


def test_sources_are_read_without_importing_their_modules() -> None:
    assert "symtable" not in sys.modules
    assert any("class SymbolTable" in source for source in source_texts(["symtable"]))
    assert "symtable" not in sys.modules


def test_a_module_that_this_python_lacks_is_skipped() -> None:
    assert list(source_texts(["no_such_module_here", "sys"])) == []


def test_paragraphs_are_prose_and_nothing_else() -> None:
    prose = "A statement is a thing that is done, and this one is done over more\nthan one line of the page it is on."
    page = f"Title\n*****\n\n{prose}\n\n   indented code that goes on for long enough to be taken, if it were prose.\n"
    (passage,) = paragraphs("a-subject", page)
    assert passage.text == prose.replace("\n", " ")
    assert passage.subject == "a subject"


@pytest.mark.parametrize("task", ["chat", "code"])
def test_there_is_enough_text_on_this_machine_and_it_is_the_same_each_time(task: Task) -> None:
    passages = collect_passages(task, 80)
    assert len({passage.text for passage in passages}) == 80
    assert {passage.task for passage in passages} == {task}
    assert collect_passages(task, 80) == passages


def test_another_seed_selects_other_texts() -> None:
    assert collect_passages("code", 20, seed=1) != collect_passages("code", 20, seed=2)


def test_a_distribution_without_reference_pages_leaves_only_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_package_path", lambda name: [])
    assert collect_passages("chat", 10) == []
    assert len(collect_passages("code", 10)) == 10


def test_every_passage_has_the_requested_number_of_questions() -> None:
    passages = collect_passages("code", 5) + collect_passages("chat", 5)
    questions = dialogues(passages, each=3)
    assert len({(dialogue.question, dialogue.answer) for dialogue in questions}) == 30
    assert all("{" not in dialogue.question.replace(dialogue.answer, "") for dialogue in questions)
    assert dialogues(passages, each=3) == questions


def test_everyday_questions_are_open_and_differ() -> None:
    questions = everyday_questions("chat", 100, seed=1)
    assert {dialogue.answer for dialogue in questions} == {""}
    assert len({dialogue.question for dialogue in questions}) > 50
    assert everyday_questions("chat", 100, seed=1) == questions
    assert everyday_questions("code", 1, seed=1)[0].task == "code"
