"""/v1/audio/transcriptions and /v1/audio/translations of a vLLM engine for speech.

The form is read with Python's parser for mail, which is slow, and independent of the router's.
"""

import email.policy
import hashlib
import io
import math
import wave
from collections.abc import Iterable
from dataclasses import replace
from email.parser import BytesParser
from typing import Final

from msgspec.json import encode

from engines.simulator.endpoints.apis import GenerationApi, response_id
from engines.simulator.endpoints.generation import GenerationEndpoint
from engines.simulator.engine.core import Delta
from engines.simulator.formats.bodies import ChoiceAccumulator, Json
from engines.simulator.formats.frames import DONE, Envelope, TokenUsage, usage_object
from engines.simulator.rejections import Rejection, bad_request
from engines.simulator.settings import SimulatorSettings
from engines.simulator.text.answers import TokenKind
from engines.simulator.validation import fields
from engines.simulator.validation.checks import check_model
from engines.simulator.validation.requests import GenerationRequest, chat_request

_FIELDS: Final = {
    "model": "text",
    "language": "text",
    "prompt": "text",
    "response_format": "text",
    "temperature": "number",
    "seed": "integer",
    "stream": "boolean",
    "stream_include_usage": "boolean",
    "stream_continuous_usage_stats": "boolean",
    "max_completion_tokens": "integer",
}
_FORMATS: Final = ("json", "text", "srt", "verbose_json", "vtt", "diarized_json")
_SUPPORTED: Final = ("text", "json", "verbose_json", "diarized_json")
_SAMPLES_PER_SECOND: Final = 16_000  # of two bytes, for a file that is no WAV


class TranscriptEndpoint(GenerationEndpoint):
    """An ASGI app for one endpoint that takes a form with an audio file."""

    def _read_fields(self, raw: bytes, headers: dict[str, str]) -> fields.Body:
        kind = headers.get("content-type", "")
        if not kind.lower().startswith("multipart/form-data"):
            raise fields.missing_fields({}, "file")
        message = BytesParser(policy=email.policy.HTTP).parsebytes(
            b"Content-Type: " + kind.encode() + b"\r\n\r\n" + raw
        )
        body: fields.Body = {}
        for part in message.iter_parts():
            name, value = part.get_param("name", header="content-disposition"), part.get_payload(decode=True)
            assert isinstance(value, bytes), "no part has parts of its own"
            body[str(name)] = value if part.get_filename() is not None else value.decode()
        return body


def _parse_request(body: fields.Body, settings: SimulatorSettings) -> GenerationRequest:
    audio = body.get("file")
    if audio is None:
        raise fields.missing_fields({name: value for name, value in body.items() if name != "file"}, "file")
    if isinstance(audio, str):
        # vLLM raises this as an HTTPException of FastAPI.
        raise Rejection(422, "Expected 'file' to be a file-like object, not 'str'.", shape="detail")
    options = fields.coerce({name: value for name, value in body.items() if name != "file" and value != ""}, _FIELDS)
    if not options.get("stream"):
        for name in ("stream_include_usage", "stream_continuous_usage_stats"):
            if options.get(name):
                raise bad_request("Stream options can only be defined when `stream=True`.", name)
    check_model(options, settings)
    wanted = options.get("response_format", "json")
    if wanted not in _FORMATS:
        choices = "'json', 'text', 'srt', 'verbose_json', 'vtt' or 'diarized_json'"
        raise bad_request(f"Input should be {choices}", "response_format")
    if wanted not in _SUPPORTED:
        # vLLM accepts the value and has no such format.
        raise Rejection(
            400, "Currently only support response_format: `text`, `json`, `verbose_json` or `diarized_json`"
        )
    if wanted == "diarized_json":
        raise Rejection(400, f"Currently do not support diarized_json for {settings.model_names[0]}")
    if wanted == "verbose_json" and options.get("stream"):
        raise Rejection(400, "verbose_json format doesn't support streaming case")
    if not audio:
        raise Rejection(400, "Invalid or unsupported audio file.")
    digest = hashlib.sha256(audio).hexdigest()
    text = f"Transcribe {digest}. {options.get('prompt', '')}"
    sampling = ("model", "temperature", "seed", "stream")
    chat: fields.Body = {name: options[name] for name in sampling if name in options}
    usage = {
        "include_usage": options.get("stream_include_usage", False),
        "continuous_usage_stats": options.get("stream_continuous_usage_stats", False),
    }
    request = chat_request(
        {
            **chat,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": options.get("max_completion_tokens"),
            **({"stream_options": usage} if options.get("stream") else {}),
        },
        settings,
    )
    return replace(request, original={**options, "sha256": digest, "seconds": _seconds(audio)})


def _seconds(audio: bytes) -> float:
    try:
        with wave.open(io.BytesIO(audio)) as file:
            return float(file.getnframes() / file.getframerate())
    except (wave.Error, EOFError):
        return len(audio) / (2 * _SAMPLES_PER_SECOND)


class _TranscriptFrames:
    """The events of one stream; vLLM leaves out what is not set."""

    opens_immediately = False

    def __init__(self, kind: str, request: GenerationRequest, envelope: Envelope, *, finish: bool) -> None:
        self._request = request
        self._finish = finish
        self._usage = TokenUsage(len(request.prompts[0].tokens), 1)
        head = {"id": envelope.id, "object": kind, "created": envelope.created, "model": envelope.model}
        self._prefix = b"data: " + encode(head)[:-1] + b',"choices":['

    def opening_frames(self) -> list[bytes]:
        """None: the stream starts with the first text."""
        return []

    def delta_frames(self, delta: Delta) -> list[bytes]:
        self._usage.add(delta)
        text = "".join(part.text for part in delta.parts)
        reason = delta.finish_reason if self._finish else None
        if not text and reason is None:
            return []
        choice: dict[str, object] = {"delta": {"content": text}}
        if reason is not None:
            choice |= {"finish_reason": reason, "stop_reason": delta.stop_reason}
        usage = b',"usage":' + encode(self._total()) if self._request.continuous_usage else b""
        return [self._prefix + encode(choice) + b"]" + usage + b"}\n\n"]

    def closing_frames(self) -> list[bytes]:
        if not self._request.include_usage:
            return []
        return [self._prefix + b'],"usage":' + encode(self._total()) + b"}\n\n"]

    def final_frame(self) -> bytes:
        return DONE

    def _total(self) -> dict[str, object]:
        return usage_object(self._usage.prompt, sum(self._usage.by_choice))


def _body(request: GenerationRequest, choices: Iterable[ChoiceAccumulator], *, has_usage: bool) -> Json:
    text = "".join(choice.text(TokenKind.CONTENT) for choice in choices)
    seconds = request.original["seconds"]
    if request.original.get("response_format") != "verbose_json":
        usage = {"usage": {"type": "duration", "seconds": math.ceil(seconds)}} if has_usage else {}
        return {"text": text, **usage}
    segment = {
        "id": 0, "avg_logprob": -0.25, "compression_ratio": 1.0, "end": seconds, "no_speech_prob": None, "seek": 0,
        "start": 0.0, "temperature": request.original.get("temperature", 0.0), "text": text, "tokens": [],
    }  # fmt: skip
    language = request.original.get("language", "en")
    return {"duration": seconds, "language": language, "text": text, "segments": [segment], "words": None}


def _api(path: str, name: str, kind: str, *, has_usage: bool) -> GenerationApi:
    def make_frames(request: GenerationRequest, envelope: Envelope, *, finish: bool) -> _TranscriptFrames:
        return _TranscriptFrames(kind, request, envelope, finish=finish)

    def make_body(
        request: GenerationRequest, envelope: Envelope, choices: list[ChoiceAccumulator], *, finish: bool
    ) -> Json:
        return _body(request, choices, has_usage=has_usage)

    return GenerationApi(
        path, _parse_request, make_frames, make_body, make_id=lambda _, headers: response_id(name, headers)
    )


TRANSCRIPT_APIS: Final = (
    _api("/v1/audio/transcriptions", "transcribe", "transcription.chunk", has_usage=True),
    _api("/v1/audio/translations", "translate", "translation.chunk", has_usage=False),
)
