"""The end of an in-flight request, as followers in other processes get it."""

import msgspec
import pytest

from router.core.endpoints.recording.recorded_response import RecordedResponse
from router.errors import ApiError
from router.flow.result import GenerationResult, lost_result
from router.flow.sharing.outcome_codec import decode_result, encode_result
from router.shared.inflight.stream_writer import MAX_UNSENT_BYTES
from tests.support.sse_answers import DONE_FRAME

LARGE = b"x" * (MAX_UNSENT_BYTES + 1)
END_OF_FORMAT_1 = {
    "landing_body": None, "body": None, "usage_frame": b"{}", "last_frames": b"", "kept": True,
    "endings": (DONE_FRAME, DONE_FRAME), "prompt_tokens": 1, "completion_tokens": 2, "engine": "llama",
}  # fmt: skip
"""What a router of entry format 1 publishes at the end of a stream that it stores."""


def recorded(body: bytes = b"{}", stream: bytes | None = None) -> RecordedResponse:
    return RecordedResponse(body=body, stream=stream, prompt_tokens=1, completion_tokens=2)


@pytest.mark.parametrize(
    "result",
    [
        GenerationResult(complete=True, body=b"{}", recorded_response=recorded(), prompt_tokens=1, completion_tokens=2),
        GenerationResult(
            complete=True,
            recorded_response=recorded(stream=b"~"),
            endings=(DONE_FRAME, b"usage"),
            prompt_tokens=1,
            completion_tokens=2,
            generation_ms=3,
        ),
        GenerationResult(complete=True, endings=(DONE_FRAME, DONE_FRAME), prompt_tokens=3),
    ],
    ids=["JSON", "stream", "stream-that-is-not-stored"],
)
def test_a_complete_result_arrives_as_it_was_sent(result: GenerationResult) -> None:
    assert decode_result(encode_result(result, engine="llama")) == result


def test_an_error_arrives_with_everything_that_a_client_and_a_metric_need() -> None:
    error = ApiError(429, "Slow down.", kind="busy", code="c", param="p", retry_after=3, raw=b"{}")
    sent = GenerationResult(complete=False, error=error, error_reason="status-429", had_data=True)
    received = decode_result(encode_result(sent, engine=None))
    assert (received.complete, received.error_reason, received.had_data) == (False, "status-429", True)
    assert received.error is not None
    assert vars(received.error) == vars(error)


def test_a_response_of_many_megabytes_does_not_go_through_redis_and_followers_get_lost() -> None:
    encoded = encode_result(GenerationResult(complete=True, body=LARGE), engine=None)
    assert len(encoded) < 1000
    assert decode_result(encoded).error_reason == lost_result().error_reason


def test_a_stream_whose_json_form_has_many_megabytes_is_complete_for_followers_all_the_same() -> None:
    result = GenerationResult(complete=True, recorded_response=recorded(LARGE), endings=(DONE_FRAME, DONE_FRAME))
    encoded = encode_result(result, engine=None)
    assert len(encoded) < 1000
    decoded = decode_result(encoded)
    assert (decoded.complete, decoded.endings) == (True, (DONE_FRAME, DONE_FRAME))


def test_the_end_that_a_router_of_the_format_before_sends_is_read() -> None:
    result = decode_result(msgspec.msgpack.encode(END_OF_FORMAT_1))
    assert (result.complete, result.recorded_response, result.endings) == (True, None, (DONE_FRAME, DONE_FRAME))
    assert (result.prompt_tokens, result.completion_tokens) == (1, 2)


@pytest.mark.parametrize("body", [None, b"{}"])
def test_an_encoded_end_has_all_that_a_router_of_the_format_before_requires(body: bytes | None) -> None:
    result = GenerationResult(
        complete=True, body=body, recorded_response=recorded(stream=b"~"), endings=(DONE_FRAME, DONE_FRAME)
    )
    assert msgspec.msgpack.decode(encode_result(result, engine="llama")).keys() >= END_OF_FORMAT_1.keys()


def test_a_response_that_names_memory_of_one_engine_does_not_reach_followers() -> None:
    private = GenerationResult(complete=True, body=b"{}", is_private=True)
    assert decode_result(encode_result(private, engine="llama")).error_reason == "lost"
