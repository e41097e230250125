"""The functions of an endpoint, for tests that do not know the endpoint of a request."""

from router.core.endpoints.chat import CHAT, CHAT_CHOICES
from router.core.endpoints.completions import COMPLETIONS, COMPLETIONS_CHOICES
from router.core.endpoints.endpoint import Endpoint, InferenceRequest, Recorder
from router.core.endpoints.errors.error_envelope import BrokenStream
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.errors import ApiError


def make_recorder(endpoint: Endpoint, limit: int) -> Recorder:
    assert endpoint.streaming is not None
    return endpoint.streaming.make_recorder(limit, None)


def choices_recorder(limit: int, shapes: AnswerShapes | None = None, *, endpoint: Endpoint = CHAT) -> ChoicesRecorder:
    return ChoicesRecorder(COMPLETIONS_CHOICES if endpoint is COMPLETIONS else CHAT_CHOICES, limit, shapes)


def record_body(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    return request.endpoint.record_body(request, body, limit)


def error_frame(endpoint: Endpoint, error: ApiError) -> bytes:
    return endpoint.errors.frame(error, BrokenStream("request-1"))
