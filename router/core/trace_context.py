"""The context of a trace in HTTP headers: `traceparent` and `tracestate`.

Source: https://www.w3.org/TR/trace-context/. What is malformed is left out, as that document asks for.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

_TRACEPARENT: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MEMBER: Final = re.compile(
    rb"[a-z0-9][a-z0-9_*/-]{0,240}(@[a-z][a-z0-9_*/-]{0,13})?=[ -+\--<>-~]{0,255}[!-+\--<>-~]", re.ASCII
)
_SAMPLED: Final = 0x01

MAX_TRACESTATE: Final = 512
"""Bytes of a tracestate at most; a longer one is left out."""
_MAX_MEMBERS: Final = 32


class TraceContext(NamedTuple):
    """The span that a request belongs to. `sampled`: its sender records the trace."""

    trace_id: int
    span_id: int
    sampled: bool


def traceparent_of(values: Sequence[bytes]) -> str | None:
    """The value of the header `traceparent`; None unless it is there once and well-formed."""
    return values[0].decode("ascii") if len(values) == 1 and _TRACEPARENT.fullmatch(values[0]) else None


def tracestate_of(values: Sequence[bytes]) -> str | None:
    """The values of the header `tracestate` as one; None if they are missing, malformed or too long."""
    if sum(map(len, values)) > MAX_TRACESTATE:
        return None
    members = [member.strip(b" \t") for value in values for member in value.split(b",")]
    members = [member for member in members if member]  # empty ones are allowed
    if not 0 < len(members) <= _MAX_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return None
    return b",".join(members).decode("ascii")


def parse_traceparent(traceparent: str) -> TraceContext:
    """The context in a well-formed `traceparent`; see traceparent_of."""
    _, trace_id, span_id, flags = traceparent.split("-")
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))


def format_traceparent(context: TraceContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{'01' if context.sampled else '00'}"
