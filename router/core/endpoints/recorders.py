"""The recorder of each endpoint."""

from router.core.endpoints.answer_shapes import AnswerShapes
from router.core.endpoints.embeddings import record_embeddings
from router.core.endpoints.messages import MessagesRecorder, record_message
from router.core.endpoints.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording import Recorder, StreamRecorder, record_choices
from router.core.endpoints.request import InferenceRequest
from router.core.endpoints.responses import ResponsesRecorder, record_response
from router.core.types import Endpoint


def make_recorder(endpoint: Endpoint, limit: int, shapes: AnswerShapes | None = None) -> Recorder:
    """A recorder of a stream. Embeddings never stream.

    `limit`: the maximum size of an entry in bytes. `shapes`: see answer_shapes; used for chats and completions only.
    """
    match endpoint:
        case Endpoint.RESPONSES:
            return ResponsesRecorder(limit)
        case Endpoint.MESSAGES:
            return MessagesRecorder(limit)
    return StreamRecorder(limit, shapes)


def record_body(request: InferenceRequest, body: bytes, limit: int) -> RecordedResponse | NotStoredReason:
    match request.endpoint:
        case Endpoint.EMBEDDINGS:
            return record_embeddings(request, body, limit)
        case Endpoint.RESPONSES:
            return record_response(body, limit)
        case Endpoint.MESSAGES:
            return record_message(body, limit)
    return record_choices(request, body, limit)
