"""What vLLM reports of a request's draft is read and forwarded, and not stored. The bytes are those of vLLM 0.32."""

from typing import Any, Final

import pytest

from router.core.endpoints.endpoint import InferenceRequest
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.recorded_response import RecordedResponse, RequestSpeculation
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.requests.request_metrics import parse_speculation, without_metrics, without_metrics_event
from tests.support.endpoints import choices_recorder, record_body
from tests.support.factories import chat, choice_delta, completion, encode_event, recorded_response
from tests.support.replay_helpers import replay_json

LIMIT: Final = 1 << 20
COUNTS: Final = (
    b'"mean_acceptance_length":4.6,"draft_acceptance_rate":0.9,"acceptance_histogram":[0,0,1,0,4],"num_spec_steps":5,'
    b'"num_accepted_draft_tokens":18,"num_draft_tokens":20,"num_spec_tokens":4'
)
IN_EVENT: Final = b'{"speculative_decoding":{%b}}' % COUNTS
IN_BODY: Final = (
    b'{"time_to_first_token_ms":null,"generation_time_ms":null,"queue_time_ms":null,"mean_itl_ms":null,'
    b'"tokens_per_second":null,"speculative_decoding":{%b,"per_step_accepted":null,"per_step_drafted":null}}' % COUNTS
)
USAGE: Final = b'"usage":{"prompt_tokens":16,"total_tokens":40,"completion_tokens":24}'
REPORTED: Final = RequestSpeculation(5, 18)


def usage_event(metrics: bytes = b"", id_: str = "chatcmpl-bf4fda2a") -> bytes:
    head = b'{"id":"%b","object":"chat.completion.chunk","created":1795437614,"model":"m"' % id_.encode()
    return b'data: %b,"choices":[],%b,"system_fingerprint":"vllm"%b}\n\n' % (head, USAGE, metrics)


def stream(metrics: bytes = b"", id_: str = "chatcmpl-bf4fda2a") -> list[bytes]:
    head = {"id": id_, "object": "chat.completion.chunk", "created": 1795437614, "model": "m"}
    deltas = [choice_delta(role="assistant", content=""), choice_delta(content="a"), choice_delta(finish="stop")]
    return [*(encode_event({**head, "choices": [delta]}) for delta in deltas), usage_event(metrics, id_), DONE]


def recorded(sent: list[bytes], shapes: AnswerShapes | None = None) -> tuple[Any, RecordedResponse]:
    recorder = choices_recorder(LIMIT, shapes)
    for frame in sent:
        recorder.feed(frame)
    return recorder, recorded_response(recorder, chat(stream=True))


@pytest.mark.parametrize(
    ("metrics", "reported"),
    [
        (IN_EVENT, REPORTED),
        (IN_BODY, REPORTED),
        (b'{"time_to_first_token_ms":3.5,"speculative_decoding":null}', None),
        (b"{}", None),
        (b"null", None),
        (b'{"speculative_decoding":{"num_spec_steps":5}}', None),
        (b'{"speculative_decoding":{"num_spec_steps":-1,"num_accepted_draft_tokens":0}}', None),
        (b'{"speculative_decoding":{"num_spec_steps":1e99,"num_accepted_draft_tokens":0}}', None),
        (b'{"speculative_decoding":7}', None),
        (b"[" * 10**5, None),
        (b'"\xff"', None),
    ],
)
def test_the_steps_of_a_request_are_read_where_they_are_in_the_form_of_vllm(
    metrics: bytes, reported: RequestSpeculation | None
) -> None:
    assert parse_speculation(metrics) == reported


def test_a_client_that_requests_the_usage_gets_the_engines_own_event_and_the_entry_has_no_metrics() -> None:
    with_metrics, response = recorded(stream(b',"metrics":' + IN_EVENT))
    assert with_metrics.speculation == REPORTED
    assert with_metrics.final_frames(include_usage=True) == usage_event(b',"metrics":' + IN_EVENT) + DONE
    without, expected = recorded(stream())
    assert without.speculation is None
    assert response == expected
    assert "metrics" not in replay_json(response)


def test_streams_that_differ_in_their_metrics_have_one_shape() -> None:
    shapes = AnswerShapes()
    for steps in range(3):
        metrics = IN_EVENT.replace(b'"num_spec_steps":5', b'"num_spec_steps":%d' % steps)
        recorded(stream(b',"metrics":' + metrics, f"chatcmpl-0000000{steps}"), shapes)
    assert len(shapes) == 1


@pytest.mark.parametrize("request_", [chat(), completion()])
def test_a_json_response_is_stored_as_vllm_writes_it_without_metrics(request_: InferenceRequest) -> None:
    choice = b'{"index":0,"text":"a","message":{"content":"\\"metrics\\":{"},"finish_reason":"stop"}'
    body = b'{"id":"c1","choices":[%b],%b,"metrics":%%b}' % (choice, USAGE)
    response = record_body(request_, body % IN_BODY, LIMIT)
    assert isinstance(response, RecordedResponse)
    assert (response.body, response.speculation) == (body % b"null", REPORTED)


def test_other_metrics_of_an_engine_are_part_of_its_response() -> None:
    body = b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"metrics":{"watts":3}}'
    response = record_body(chat(), body, LIMIT)
    assert isinstance(response, RecordedResponse)
    assert response.body == body


def test_metrics_in_another_encoding_stay() -> None:
    assert without_metrics(b'{"metrics" : {}}', b"{}") == b'{"metrics" : {}}'
    assert without_metrics_event(b'data: {"metrics":{}}\n\n', b"{}") == b'data: {"metrics":{}}\n\n'
