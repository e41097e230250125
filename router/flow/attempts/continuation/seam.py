"""One seam of a stream: what the engine before it has said, and how another engine can go on."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.continuation.continuation_body import (
    may_be_asked_by_ids,
    remaining_tokens,
    request_by_ids,
    request_by_text,
)
from router.core.endpoints.continuation.continued_stream import ContinuedRecorder, end_locally
from router.core.endpoints.continuation.derendered_chat import DerenderedChat
from router.core.endpoints.continuation.stream_so_far import (
    StreamSoFar,
    find_obstacle,
    held_back_chars,
    may_be_complete,
    may_begin_anew,
    read_so_far,
    request_obstacle,
)
from router.core.endpoints.endpoint import InferenceRequest, Recorder
from router.core.endpoints.recording.choices import ChoicesFormat
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.core.endpoints.recording.recording import StreamRecorder
from router.net.client.errors import EngineError
from router.settings import Settings
from router.upstream.adapters import Adapter
from router.upstream.engine import Engine
from router.upstream.engine_kinds import UNLIMITED

_NOT_THE_ENGINES_FAULT: Final = ("refused", "too-large")

# vLLM applies these to what it generates itself, and so not across the seam; so may an extension that reads the last.
_OUTPUT_FIELDS: Final = ("presence_penalty", "frequency_penalty", "bad_words", "vllm_xargs")


class ContinuationLimits(msgspec.Struct, frozen=True):
    """`per_stream`: continuations of one stream at most. `excluded`: the models whose streams have none.

    `chat_tokens`: by model, the tokens of a chat without `max_tokens`, if its engines limit it below their context.
    """

    per_stream: int = 2
    excluded: frozenset[str] = frozenset()
    chat_tokens: Mapping[str, int] = MappingProxyType({})

    def allows(self, model: str) -> bool:
        return self.per_stream > 0 and model not in self.excluded

    def default_tokens(self, request: InferenceRequest, first: Engine) -> int | None:
        """The limit of a request that states none, at its first engine; UNLIMITED is none, and None is unknown."""
        if request.endpoint.path == COMPLETIONS.path:
            return first.traits.completion_limit
        return self.chat_tokens.get(first.model, UNLIMITED)


def continuation_limits(settings: Settings) -> ContinuationLimits:
    return ContinuationLimits(
        settings.retry.continuations,
        frozenset(model.name for model in settings.model if not model.resume),
        {model.name: model.default_max_tokens for model in settings.model if model.default_max_tokens is not None},
    )


NO_CONTINUATIONS: Final = ContinuationLimits(0)


class Restart(NamedTuple):
    """How an engine is to go on.

    - `request`: what it gets. `by_ids`: with the ids of the tokens so far, in place of their text.
    - `exact`: it begins in the state of the failed one. Without randomness, it then generates what that would have.
    - `asks_token_ids`: it is asked for the ids of its tokens.
    - `anew`: it gets the client's request, and begins the response anew.
    - `derenders`: its parser makes a chat of the tokens.
    """

    request: InferenceRequest
    by_ids: bool
    exact: bool
    asks_token_ids: bool
    anew: bool = False
    derenders: bool = False


class Seam:
    """Where one engine has broken a stream off.

    - `obstacle`: why no engine can go on, in a word; None if nothing is known against it.
    - Before `read`: `has_obstacle`, `able` and `may_be_complete`. `read` takes longer for a longer stream.
    - After it: `begins_anew`, `tokens`, `is_complete`, `end`, `candidates`, `restart_at`, `new_recorder`, `new_chat`.
    """

    def __init__(
        self, request: InferenceRequest, recorder: Recorder, failed: Engine, error: EngineError, *,
        dispatched_at: float, adapter: Adapter | None = None, default_tokens: int | None = UNLIMITED,
    ) -> None:  # fmt: skip
        """`request`: the client's. `dispatched_at`: when it was first sent, by time.perf_counter.

        `default_tokens`: see ContinuationLimits.

        `adapter`: what the request is for; None if it is for a model of the configuration.
        """
        self.failed = failed
        self.error = error
        self._client_request = request
        self._is_limit_known = request.max_tokens is not None or default_tokens is not None
        if request.max_tokens is None and default_tokens:
            request = msgspec.structs.replace(request, max_tokens=default_tokens)
        self.request = request
        self._adapter = adapter
        self._dispatched_at = dispatched_at
        self._recorder = recorder
        self._may_use_ids = True
        self._by_context: dict[int | None, InferenceRequest | None] = {}
        self._by_text: list[InferenceRequest | None] = []  # empty: not made yet
        self.so_far: StreamSoFar | None = None
        self.begins_anew = False
        self._needs_parser = False  # what has been said cannot be the text of a message
        self._may_begin_anew = may_begin_anew(request)
        self._rest_obstacle = self._obstacle_of_rest()
        self.obstacle = self._rest_obstacle if not self._may_begin_anew else None
        if error.reason in _NOT_THE_ENGINES_FAULT:
            self.obstacle = error.reason

    def _obstacle_of_rest(self) -> str | None:
        """What of the request is against an engine that goes on where the failed one broke off."""
        obstacle = request_obstacle(self.request)
        if obstacle is None and not isinstance(self._recorder, ChoicesRecorder):
            return "endpoint"
        if obstacle is None and not self._is_limit_known:
            return "uncounted"  # the next engine would begin to count at zero
        return obstacle

    def read(self) -> None:
        """Reads what the stream has said, which may be an obstacle."""
        if self.obstacle is not None:
            return
        obstacle = self._rest_obstacle or self._obstacle_of_stream()
        if obstacle is None:
            return
        anew = self._begin_anew()
        self.begins_anew = not isinstance(anew, str)
        if isinstance(anew, str):
            # Only what the endpoint finds says why a stream cannot go on that can only begin anew.
            self.obstacle = anew if obstacle == "endpoint" else obstacle

    def _begin_anew(self) -> Recorder | str:
        streaming = self.request.endpoint.streaming
        if not self._may_begin_anew or streaming is None or streaming.begin_anew is None:
            return "endpoint"
        return streaming.begin_anew(self._recorder)

    def _obstacle_of_stream(self) -> str | None:
        assert isinstance(self._recorder, ChoicesRecorder)  # else there is an obstacle
        so_far = read_so_far(
            self._recorder.parts, self._recorder.token_ids, held_back_chars(self.request.fields),
            remaining_tokens(self.request, 0), to_derender=self._has_tools,
        )  # fmt: skip
        if isinstance(so_far, str):
            return so_far
        self.so_far = so_far
        if so_far.finish_reason is not None:
            return None
        if self._must_count and not so_far.counted:
            return "uncounted"  # an event may have several tokens, so the client might get more than it asked for
        if not self.is_complete and (so_far.calls or (so_far.has_reasoning and self._has_tools)):
            self._needs_parser = True
            return None if self._may_derender(so_far) else "tools"
        return None

    def _may_derender(self, so_far: StreamSoFar) -> bool:
        """Whether a parser of tokens can take what has been said, if an engine has one."""
        return so_far.generated_ids is not None and self._fits_parser

    @property
    def _fits_parser(self) -> bool:
        """The same without the stream: whether nothing of the request is against it, and ids were asked for."""
        assert isinstance(self._recorder, ChoicesRecorder)
        # An engine cuts a text off at a stop string, which a parser of tokens does not.
        return (
            self._may_use_ids
            and self._recorder.token_ids is not None
            and not self.request.fields.get("stop")
            and may_be_asked_by_ids(self.request)
        )

    @property
    def _has_tools(self) -> bool:
        return bool(self.request.fields.get("tools"))

    @property
    def _must_count(self) -> bool:
        return remaining_tokens(self.request, 0) is not None or bool(self.request.fields.get("min_tokens"))

    def has_obstacle_at(self, engines: Sequence[Engine]) -> bool:
        """Whether none of these engines can go on, as far as it is known without `read`."""
        if self.obstacle is not None:
            return True
        if self._rest_obstacle is None:
            assert isinstance(self._recorder, ChoicesRecorder)  # else there is an obstacle
            may_derender = any(engine.traits.parses_tokens for engine in engines) and self._fits_parser
            only_text = self._has_tools and not may_derender
            found = find_obstacle(self._recorder.parts, self._recorder.token_ids, only_text=only_text)
            if found is None or (found == "uncounted" and not self._must_count):
                return False
        return isinstance(self._begin_anew(), str)

    @property
    def tokens(self) -> int:
        """Those after which the next engine goes on, as far as they are known; 0 if it begins anew."""
        return 0 if self.so_far is None else self.so_far.tokens

    @property
    def repeated_tokens(self) -> int:
        """Tokens that the next engine processes again, as far as they are known."""
        so_far = self.so_far
        if self.begins_anew and isinstance(self._recorder, StreamRecorder) and self._recorder.token_ids is not None:
            prompt = self._recorder.token_ids.prompt
            return prompt.count(b",") + 1 if prompt else 0
        return 0 if so_far is None else (so_far.prompt_tokens or 0) + so_far.tokens

    @property
    def _choices_format(self) -> ChoicesFormat:
        streaming = self.request.endpoint.streaming
        assert streaming is not None
        assert streaming.choices_format is not None  # else there is an obstacle
        return streaming.choices_format

    @property
    def may_be_complete(self) -> bool:
        """Whether `is_complete` may be true after `read`."""
        recorder = self._recorder
        if self._rest_obstacle is not None or not isinstance(recorder, ChoicesRecorder) or recorder.parts is None:
            return False
        limit = remaining_tokens(self.request, 0)
        return may_be_complete(recorder.parts, recorder.token_ids, limit)

    @property
    def is_complete(self) -> bool:
        """Whether no engine is needed: only the end is missing, or the client's limit is reached."""
        so_far = self.so_far
        if so_far is None:
            return False
        return so_far.finish_reason is not None or remaining_tokens(self.request, so_far.tokens) == 0

    def end(self) -> bytes:
        """Ends the stream without an engine; returns the bytes to publish."""
        assert self.so_far is not None
        assert isinstance(self._recorder, ChoicesRecorder)
        return end_locally(self._recorder, self._choices_format, self.so_far)

    def able(self, engines: Sequence[Engine], excluded: Sequence[Engine]) -> list[Engine]:
        """The engines that can go on, as far as it is known without the stream: those that answer as the failed one and
        have not failed.

        `engines`: of its model. A change of an engine's settings makes another object of it.
        """
        failed = {(engine.name, engine.url) for engine in excluded}
        return [
            engine
            for engine in engines
            if (engine.name, engine.url) not in failed
            and engine.answers_as(self.failed.revision, self._adapter)
            and not engine.drained
        ]

    @property
    def missing(self) -> str:
        """In a word, what no engine has if there are no `candidates`."""
        return "tools" if self._needs_parser else "no-engine"

    def candidates(self, able: Sequence[Engine]) -> list[Engine]:
        """Those of the `able` engines that can go on."""
        return [engine for engine in able if self.restart_at(engine) is not None]

    def restart_at(self, engine: Engine) -> Restart | None:
        """None if this engine has no way to go on."""
        if self.begins_anew:
            return Restart(self._client_request, False, False, self._asks_token_ids(engine), anew=True)
        assert self.so_far is not None
        if engine.max_model_len is not None and self.repeated_tokens >= engine.max_model_len:
            return None
        by_ids, derenders = None, self._needs_parser
        # An engine that may have no parser of tokens is asked for it before it gets the request.
        has_parser = not derenders or engine.traits.parses_tokens is not False
        if self._may_use_ids and engine.traits.token_ids and has_parser:
            by_ids = self._request_by_ids(self.so_far, engine.max_model_len)
        if by_ids is not None:
            exact = not derenders and not any(self.request.fields.get(name) for name in _OUTPUT_FIELDS)
            return Restart(by_ids, True, exact, self._asks_token_ids(engine), derenders=derenders)
        if self._needs_parser:
            return None
        by_text = self._request_by_text(self.so_far, engine)
        return None if by_text is None else Restart(by_text, False, False, self._asks_token_ids(engine))

    def _request_by_text(self, so_far: StreamSoFar, engine: Engine) -> InferenceRequest | None:
        is_chat = self._choices_format.has_messages
        if is_chat and not engine.traits.continues_messages:
            return None
        if not is_chat and self.request.max_tokens is None and engine.traits.completion_limit != UNLIMITED:
            return None
        # Only of vLLM it is known that it holds back what may be the beginning of a stop string.
        holds_back = self.failed.traits.token_ids and engine.traits.token_ids
        if self.request.fields.get("stop") and not holds_back:
            return None
        if not self._by_text:
            self._by_text.append(request_by_text(self.request, so_far))
        return self._by_text[0]

    def _request_by_ids(self, so_far: StreamSoFar, max_model_len: int | None) -> InferenceRequest | None:
        # Made once for all engines with this context, since it has all tokens.
        if max_model_len not in self._by_context:
            self._by_context[max_model_len] = request_by_ids(
                self.request, so_far, max_model_len, parsed=self._needs_parser
            )
        return self._by_context[max_model_len]

    def _asks_token_ids(self, engine: Engine) -> bool:
        # Where it has them, and the recorder takes them out.
        recorder = self._recorder
        return engine.traits.token_ids and isinstance(recorder, StreamRecorder) and recorder.token_ids is not None

    def elapsed(self, now: float) -> float:
        """Seconds since the response was asked for, which count for its total timeout."""
        return now - self._dispatched_at

    def new_recorder(self, restart: Restart) -> Recorder:
        if restart.anew:
            recorder = self._begin_anew()
            assert not isinstance(recorder, str)  # `read` got one, and the stream has had no event since
            return recorder
        assert self.so_far is not None
        assert isinstance(self._recorder, ChoicesRecorder)
        return ContinuedRecorder(
            self._recorder, self._choices_format, self.so_far, by_ids=restart.by_ids,
            other_fields=("tool_calls",) if self._has_tools else (),
        )  # fmt: skip

    def new_chat(self) -> DerenderedChat:
        """What makes a chat of the tokens of an engine that derenders."""
        so_far, recorder = self.so_far, self._recorder
        assert so_far is not None
        assert isinstance(recorder, StreamRecorder)
        assert recorder.token_ids is not None  # else no engine derenders
        prompt = recorder.token_ids.prompt or b""
        one_call = self.request.fields.get("parallel_tool_calls") is False
        return DerenderedChat(self._client_request.body, prompt, so_far, one_call=one_call)

    def on_failure(self, error: EngineError) -> None:
        """An attempt has failed before its first token."""
        if error.reason == "diverged":
            self._may_use_ids = False
