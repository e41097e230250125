"""/v1/audio/transcriptions and /v1/audio/translations: a form with an audio file. Responses are never stored.

Source: https://platform.openai.com/docs/api-reference/audio, and vLLM's entrypoints/speech_to_text.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from router.core.endpoints.endpoint import Endpoint, FileUpload, InferenceRequest, Streaming
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.endpoints.recording.sse import DONE
from router.core.endpoints.recording.transcript_recorder import TranscriptRecorder
from router.core.endpoints.recording.usage import estimate_usage
from router.core.endpoints.requests.request_fields import RequestFields

_TEXT_FORMATS: Final = ("text", "srt", "vtt")
"""Formats whose response need not be JSON; vLLM's `text` is."""


class _AudioFields(RequestFields):
    response_format: str | None = None


class _Transcript(msgspec.Struct):
    text: str = ""
    error: Any = None


_decode_transcript = msgspec.json.Decoder(_Transcript).decode


def _why_uncacheable(_: Mapping[str, Any]) -> str:
    return "The request has a file, which is not part of a key."


def _record_transcript(request: InferenceRequest, body: bytes, _: int) -> RecordedResponse | NotStoredReason:
    """The token counts, which are estimated: engines report the seconds of the audio, or nothing."""
    text_size = len(body)
    try:
        transcript = _decode_transcript(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if request.fields.get("response_format") not in _TEXT_FORMATS:
            return NotStoredReason.ERROR
    else:
        if transcript.error is not None:
            return NotStoredReason.ERROR
        text_size = len(transcript.text.encode("utf-8", "surrogatepass"))
    usage = estimate_usage(request.prompt_size, text_size)
    return RecordedResponse(
        body=b"", stream=None, prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens
    )


def _endpoint(name: str, operation: str) -> Endpoint:
    return Endpoint(
        path=f"/v1/audio/{name}",
        operation=operation,
        fields_type=_AudioFields,
        input=FileUpload("file"),
        find_server_state=_why_uncacheable,
        samples=True,
        applies_logit_fields=False,
        may_fall_back=True,
        record_body=_record_transcript,
        streaming=Streaming(
            needs_usage_option=False,
            make_recorder=lambda _limit, _shapes: TranscriptRecorder(),
            replay_end=DONE,
            frames_from_body=lambda _body, _include_usage: None,
        ),
    )


TRANSCRIPTIONS: Final = _endpoint("transcriptions", "transcription")
TRANSLATIONS: Final = _endpoint("translations", "translation")
