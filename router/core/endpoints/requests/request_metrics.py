"""The metrics that vLLM adds to a response: how many draft tokens its own request accepted.

vLLM 0.32 with `--per-request-spec-decode-metrics` adds `metrics.speculative_decoding` to chats and completions of one
choice: to a JSON response as its last field, in a stream to the usage event. Other endpoints and several choices have
none. Source: build_spec_decoding_metrics in vllm/entrypoints/generate/base/serving.py and its callers.

Clients get the engine's bytes, with the metrics. They are not stored: they say nothing of a request that is served from
the cache. Without them, the streams of an engine also have the same shape (answer_shapes.py).
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from router.core.endpoints.recording.recorded_response import RequestSpeculation
from router.core.endpoints.recording.usage import MAX_TOKEN_COUNT

_Count = Annotated[int, Meta(ge=0, le=MAX_TOKEN_COUNT)]


class _SpeculativeDecoding(msgspec.Struct):
    num_spec_steps: _Count
    num_accepted_draft_tokens: _Count


class _Metrics(msgspec.Struct):
    speculative_decoding: _SpeculativeDecoding | None = None


_decode = msgspec.json.Decoder(_Metrics).decode


def parse_speculation(metrics: bytes) -> RequestSpeculation | None:
    """The steps with a draft of a request, from the JSON of its `metrics`; None if they are not in it."""
    try:
        reported = _decode(metrics).speculative_decoding
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # other engines may use the name for something else
    if reported is None:
        return None
    return RequestSpeculation(reported.num_spec_steps, reported.num_accepted_draft_tokens)


def without_metrics(response: bytes, metrics: bytes) -> bytes:
    """A JSON response with null in place of these metrics, as vLLM has it without the option."""
    # The last occurrence: `metrics` is the last field. In a string, its quotes would be escaped.
    before, field, after = response.rpartition(b'"metrics":' + metrics)
    return b'%b"metrics":null%b' % (before, after) if field else response


def without_metrics_event(event: bytes, metrics: bytes) -> bytes:
    """A usage event without these metrics: vLLM leaves out what is null in an event."""
    before, field, after = event.rpartition(b',"metrics":' + metrics)
    return before + after if field else event
