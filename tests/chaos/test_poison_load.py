"""The requests that end engines, and what counts as their answer."""

import pytest

from engines.simulator.control.faults import parse_markers, plan_faults
from tests.chaos.oracle import ClientResponse
from tests.chaos.poison_load import _is_answer
from tests.chaos.workload import FIRST_HOT_QUESTION, FIRST_POISON_QUESTION, POISON_EXIT_CODE, WorkloadQuestion

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("number", [1, FIRST_HOT_QUESTION + 1, FIRST_POISON_QUESTION, FIRST_POISON_QUESTION + 7])
def test_only_the_questions_of_a_range_end_engines_and_with_their_own_exit_code(number: int) -> None:
    question = WorkloadQuestion(number)
    plan = plan_faults(parse_markers(str(question.body())))
    assert (plan.exit_after is not None) is question.is_poison is (number >= FIRST_POISON_QUESTION)
    assert not question.is_poison or plan.exit_code == POISON_EXIT_CODE


@pytest.mark.parametrize(
    ("status", "headers", "body", "answered"),
    [
        (200, JSON, b"{}", True),
        (502, JSON, b"{}", False),
        (200, EVENTS, b"data: {}\n\ndata: [DONE]\n\n", True),
        (200, EVENTS, b'data: {"error": {}}\n\n', False),
    ],
)
def test_an_answer_is_complete(status: int, headers: dict[str, str], body: bytes, answered: bool) -> None:
    assert _is_answer(ClientResponse(status, headers, body, complete=True)) is answered
