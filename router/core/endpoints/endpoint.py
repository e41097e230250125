"""What an endpoint is: everything that differs between the APIs, in one object each.

The router treats all endpoints alike; where one differs from another, the code asks its `Endpoint`. Each endpoint has a
module (chat, completions, embeddings, ...), and router.core.endpoints.table lists them. To add an endpoint, add a
module and its line in the table. A member that is forgotten is a type error; only what few endpoints set has a default.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from router.core.endpoints.errors.error_envelope import OPENAI_ERRORS, ErrorEnvelope
from router.core.endpoints.recording.answer_shapes import AnswerShapes
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.recorded_response import (
    NotStoredReason,
    RecordedResponse,
    ReportedUsage,
    RequestSpeculation,
)
from router.core.endpoints.requests.form_data import FormData
from router.core.endpoints.requests.request_fields import RequestFields


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request whose known fields have valid types.

    - `fields`: the body as plain values; equal JSON gives equal fields, however its numbers are written.
    - `model`: the model that the client requests: a public name, an alias or `auto`; empty if it names none,
      until RequestResolver gives it the default.
    - `stream`: whether the client wants events. Always False at an endpoint that does not stream.
    - `include_usage`: whether the client wants the usage event at the end of its stream.
    - `max_tokens`: the client's limit of the response, in tokens, whatever its name at the endpoint; None without one.
    - `body`: the client's bytes. `form`: the same, parsed, at an endpoint that takes a file.
    - `priority`: the one that the client asks for, see router.core.quota.priority; None if it asks for none.
    """

    endpoint: "Endpoint"
    fields: dict[str, Any]
    model: str
    stream: bool
    include_usage: bool
    temperature: float | None
    seed: int | None
    max_tokens: int | None
    body: bytes
    priority: int | None = None
    form: FormData | None = None

    @property
    def prompt_size(self) -> int:
        """The bytes that may be text of the prompt, for estimates of its tokens."""
        if self.form is None:
            return len(self.body)
        return sum(part.size for part in self.form.parts if part.filename is None)

    @property
    def deterministic(self) -> bool:
        """Whether the same request always gives the same response. An omitted temperature is 1, not 0."""
        return self.temperature == 0 or self.seed is not None or not self.endpoint.samples


class Recorder(Protocol):
    """One stream, from its first byte to its last.

    - `started`: the first token has arrived. A comment or an event without content is no token.
    - `failure`: the payload of the engine's error event, or what is wrong with the bytes that it sent.
    - `ended`: the engine has sent the event that ends a stream of this endpoint.
    - `is_complete`: the stream has ended, and without a failure.
    - `usage`: the token counts that the engine has reported; None until then.
    - `speculation`: the steps with a draft that the engine has reported; None until then, or if it reports none.
    """

    started: bool
    ended: bool
    failure: bytes | None
    usage: ReportedUsage | None
    speculation: RequestSpeculation | None

    def feed(self, data: bytes) -> bytes:
        """Takes the next bytes of the stream; returns the bytes to forward now, possibly none.

        Ignores all bytes after the end of the stream, normal or not.
        """

    def final_frames(self, *, include_usage: bool) -> bytes:
        """The last bytes for the client. Send them only after the recorded response is passed to the store."""

    def feed_end(self) -> bytes:
        """As `feed`, at the end of a body: its last event may lack the empty line that ends it."""

    def error_at_end(self) -> bytes | None:
        """At the end of a body: the error that is there in place of a stream, or in an event without its empty line."""

    def end_without_marker(self) -> bool:
        """Takes the end of a body that lacks the event which ends a stream; sets and returns `ended`.

        Only for a stream that has not failed. It is true if the events show that the response is complete.
        """

    @property
    def is_complete(self) -> bool: ...

    def recorded_response(self, request: InferenceRequest) -> RecordedResponse | NotStoredReason: ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input is a list of messages, or one text, in `field`; the system prompt may have a field of its own.

    The key has the system text, the context and the rest separately. The last user text is what is classified.
    """

    field: str
    system_field: str | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """The input is a text, token ids, or a list of either, in `field`. The first text is what is classified."""

    field: str


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """The input is in `field` or, as vLLM accepts it too, a conversation in `messages_field`. Nothing is classified."""

    field: str
    messages_field: str


@dataclass(frozen=True, slots=True)
class TokenizedInput:
    """A text or token ids in `field`, or a conversation in `messages_field`, for a tokenizer. Nothing is classified.

    The key has the system text, the context and the rest separately, as that of a Conversation.
    """

    field: str
    messages_field: str | None


@dataclass(frozen=True, slots=True)
class ScoredInput:
    """Queries and documents, each a text, an object or a list of either. Nothing is classified.

    There is one field of `query_fields` and one of `document_fields`, whose documents are the rag part of the key.
    """

    query_fields: tuple[str, ...]
    document_fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileUpload:
    """The request is a form with a file in `field`; see core.endpoints.requests.upload. Nothing is classified."""

    field: str


InputLayout = Conversation | Prompt | EncodedInput | TokenizedInput | ScoredInput | FileUpload
"""Where a request has its input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """The event stream of an endpoint.

    - `needs_usage_option`: engines send the usage only with `stream_options.include_usage`.
    - `make_recorder`: a recorder for entries of at most so many bytes. Only chats and completions use the shapes.
    - `replay_end`: what follows the stored events: `[DONE]`, or nothing if the final event is stored with the others.
    - `frames_from_body`: the events with all the information of a stored JSON response, and with the usage event if the
      flag is set. None if there are no such events. Raises MALFORMED_RESPONSE_ERRORS.
    - `choices_format`: of an endpoint whose streams another engine can continue; None for the others.
    - `heartbeat`: what a client gets that has got nothing for long. Every reader of an event stream ignores comments.
    - `begin_anew`: of an endpoint at which a stream of which the client has only reasoning can begin anew. It takes the
      recorder of the stream that was broken off, and returns that of the second engine's stream, which passes rewritten
      events on to the first one; or why not, in a word. The first recorder stays as it is until the second stream has
      its first token. It reads no texts, so it takes no longer for a longer stream.
    """

    needs_usage_option: bool
    make_recorder: Callable[[int, AnswerShapes | None], Recorder]
    replay_end: bytes
    frames_from_body: Callable[[bytes, bool], bytes | None]
    choices_format: ChoicesFormat | None = None
    begin_anew: Callable[[Recorder], Recorder | str] | None = None
    heartbeat: bytes = b": heartbeat\n\n"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """One path whose requests are routed and cached. It is compared by identity.

    - `path`: of the router and of engines.
    - `operation`: its name in OpenTelemetry's conventions for generative AI (`gen_ai.operation.name`).
    - `accepts_x_api_key`: a client may send its key in `x-api-key`, too.
    - `fields_type`: the fields of a request that are validated.
    - `input`: where a request has its input.
    - `echoed_fields`: fields that are part of the cache key here alone, because the response repeats them; each with
      the reason. See key_derivation.IGNORED_FIELDS.
    - `find_server_state`: why the response depends on state at a server, by the request's fields, so that it must not
      be reused; it returns None if it does not depend on any. None for an API without such state.
    - `samples`: tokens are sampled, so that only temperature 0 or a seed makes a response deterministic.
    - `applies_logit_fields`: engines apply `min_p` and `logit_bias`, which vLLM refuses with speculative decoding. At
      the other endpoints they ignore them.
    - `may_fall_back`: another model may answer in place of the requested one.
    - `record_body`: what to store of a JSON response, in at most so many bytes, or why nothing is stored.
    - `streaming`: None if responses are always JSON; engines then ignore the field `stream`.
    - `errors`: the form of its errors.
    - `runs_model`: engines run the model. If not, their tokenizer alone answers: no context length applies, no token
      counts for limits and metrics, and a new engine is not warmed up with such requests.
    - `alias_of`: the endpoint of which this is another path, see `at`; None for most.
    - `key_path`: the path in the cache key.
    """

    path: str
    operation: str
    fields_type: type[RequestFields]
    input: InputLayout
    find_server_state: Callable[[Mapping[str, Any]], str | None] | None
    samples: bool
    applies_logit_fields: bool
    may_fall_back: bool
    record_body: Callable[[InferenceRequest, bytes, int], RecordedResponse | NotStoredReason]
    streaming: Streaming | None = None
    accepts_x_api_key: bool = False
    echoed_fields: Mapping[str, str] = field(default_factory=dict)
    errors: ErrorEnvelope = OPENAI_ERRORS
    runs_model: bool = True
    alias_of: "Endpoint | None" = None
    key_path: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key_path", self.path if self.alias_of is None else self.alias_of.path)

    def at(self, path: str) -> "Endpoint":
        """The same API at another path of engines, which is passed on as it is. The paths share their entries."""
        return replace(self, path=path, alias_of=self)

    def __repr__(self) -> str:
        return f"Endpoint({self.path!r})"
