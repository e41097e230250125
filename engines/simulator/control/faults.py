"""Faults and other instructions to the simulator: one vocabulary for the control endpoint (JSON) and for markers.

A marker is part of a prompt: `[[sim:stall after=3]]`, in JSON `{"fault": "stall", "after": 3}`. `docs/simulator.md`
lists the faults.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from engines.simulator.rejections import ERROR_SHAPES

_REQUIRED = object()
_MARKER = re.compile(r"\[\[sim:([a-z_]+)((?:\s+[a-z_0-9]+=[^\s\]]*)*)\s*\]\]")

# For each fault its options, each with its type and its default; _REQUIRED marks options without a default.
_FAULT_OPTIONS: Mapping[str, Mapping[str, tuple[type, object]]] = {
    "ttft": {"ms": (float, _REQUIRED)},
    "prefill": {"ms": (float, _REQUIRED)},
    "hold_arguments": {},
    "tps": {"rate": (float, _REQUIRED)},
    "tokens": {"n": (int, _REQUIRED)},
    "say": {"text": (str, None), "base64": (str, None)},
    "chunks": {"bytes": (int, _REQUIRED)},
    "stall": {"after": (int, 0)},
    "error": {"after": (int, 0), "message": (str, None), "code": (int, 500)},
    "drop": {"after": (int, None), "how": (str, "reset")},
    "exit": {"after": (int, 0), "code": (int, 1)},
    "no_done": {},
    "no_finish": {},
    "malformed": {},
    "event": {"bytes": (int, _REQUIRED), "after": (int, 0)},
    "status": {
        "code": (int, _REQUIRED),
        "retry_after": (str, None),
        "message": (str, None),
        "param": (str, None),
        "shape": (str, "vllm"),
        "bytes": (int, 0),
    },
    "kv": {"usage": (float, None), "metric": (str, "new")},
    "health": {"code": (int, 503)},
}
ENGINE_FAULTS = frozenset({"kv", "health"})
"""Faults of the engine rather than of one request: they stay until they are cleared."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with all its options; omitted ones have their defaults."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()

    def get(self, option: str) -> Any:
        """The value of an option; None if it was omitted and has no default."""
        return dict(self.options).get(option)


def make_fault(kind: str, given: Mapping[str, object]) -> Fault:
    """Validates the options of a fault.

    Raises ValueError that names an unknown fault, an unknown option or a bad value.
    """
    schema = _FAULT_OPTIONS.get(kind)
    if schema is None:
        raise ValueError(f"unknown fault {kind!r}; known faults: {', '.join(_FAULT_OPTIONS)}")
    if unknown := given.keys() - schema.keys():
        raise ValueError(f"fault {kind!r} has no option {', '.join(sorted(unknown))}")
    options = []
    for name, (value_type, default) in schema.items():
        if name in given:
            try:
                options.append((name, value_type(given[name])))
            except (TypeError, ValueError) as error:
                raise ValueError(f"option {name!r} of fault {kind!r} is not of type {value_type.__name__}") from error
        elif default is _REQUIRED:
            raise ValueError(f"fault {kind!r} needs option {name!r}")
        else:
            options.append((name, default))
    return Fault(kind, tuple(options))


def parse_markers(text: str) -> list[Fault]:
    """The faults that the markers in a prompt ask for; option values are URL-quoted.

    Raises ValueError for a marker that is not in the vocabulary.
    """
    return [
        make_fault(
            match[1], {name: unquote(value) for name, value in (option.split("=", 1) for option in match[2].split())}
        )
        for match in _MARKER.finditer(text)
    ]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The combined effect of the faults of one generation."""

    ttft: float | None = None
    """Seconds to the first token."""
    prefill: float = 0.0
    """Seconds in which the prompt fills its KV blocks, before that."""
    hold_arguments: bool = False
    rate: float | None = None
    length: int | None = None
    exact: str | None = None
    chunk_bytes: int | None = None
    stall_after: int | None = None
    error_after: int | None = None
    error_message: str | None = None
    error_code: int = 500
    drop_before_headers: bool = False
    drop_after: int | None = None
    drop_reset: bool = True
    exit_after: int | None = None
    exit_code: int = 1
    done: bool = True
    finish: bool = True
    malformed: bool = False
    event_bytes: int = 0
    event_after: int = 0
    status: int | None = None
    status_message: str | None = None
    status_param: str | None = None
    status_shape: str = "vllm"
    status_bytes: int = 0
    retry_after: str | None = None
    generation: str | None = None
    """The name of the generation, if the simulator keeps a generation log."""

    @property
    def needs_single_tokens(self) -> bool:
        """Whether a fault is due after a number of tokens, so that each step may yield only one token."""
        due_counts = (self.stall_after, self.error_after, self.drop_after, self.exit_after)
        return any(count is not None for count in due_counts)


def plan_faults(faults: Iterable[Fault]) -> FaultPlan:
    """Combines the faults of one generation; of two faults of one kind the later one wins.

    Raises ValueError for an option value that is out of range.
    """
    plan: dict[str, Any] = {}
    for fault in faults:
        # Later faults override earlier ones.
        plan.update(_plan_fields(fault))
    return FaultPlan(**plan)


def _plan_fields(fault: Fault) -> Iterator[tuple[str, Any]]:
    match fault.kind:
        case "ttft":
            yield "ttft", fault.get("ms") / 1000
        case "prefill":
            yield "prefill", fault.get("ms") / 1000
        case "hold_arguments":
            yield "hold_arguments", True
        case "tps":
            yield "rate", fault.get("rate")
        case "tokens":
            yield "length", fault.get("n")
        case "say":
            yield "exact", _text_to_say(fault)
        case "chunks":
            yield "chunk_bytes", max(1, fault.get("bytes"))
        case "stall":
            yield "stall_after", fault.get("after")
        case "error":
            yield "error_after", fault.get("after")
            yield "error_message", fault.get("message")
            yield "error_code", fault.get("code")
        case "drop":
            if fault.get("how") not in ("reset", "close"):
                raise ValueError("option 'how' of fault 'drop' is 'reset' or 'close'")
            yield "drop_reset", fault.get("how") == "reset"
            # Without `after` the connection is dropped before the response starts.
            yield "drop_before_headers", fault.get("after") is None
            yield "drop_after", fault.get("after")
        case "exit":
            yield "exit_after", fault.get("after")
            yield "exit_code", fault.get("code")
        case "no_done":
            yield "done", False
        case "no_finish":
            yield "finish", False
        case "malformed":
            yield "malformed", True
        case "event":
            yield "event_bytes", fault.get("bytes")
            yield "event_after", fault.get("after")
        case "status":
            if fault.get("shape") not in ERROR_SHAPES:
                raise ValueError(f"option 'shape' of fault 'status' is one of {', '.join(ERROR_SHAPES)}")
            yield "status", fault.get("code")
            yield "status_message", fault.get("message")
            yield "status_param", fault.get("param")
            yield "status_shape", fault.get("shape")
            yield "status_bytes", fault.get("bytes")
            yield "retry_after", fault.get("retry_after")


def _text_to_say(fault: Fault) -> str:
    if (encoded := fault.get("base64")) is not None:
        try:
            return base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ValueError("option 'base64' of fault 'say' is not base64 of UTF-8 text") from error
    return fault.get("text") or ""


@dataclass(slots=True)
class _RegisteredFault:
    fault: Fault
    times: int | None
    match: str


@dataclass(slots=True)
class FaultRegistry:
    """The faults that are set through the control endpoint, in the order of their arrival."""

    _entries: list[_RegisteredFault] = field(default_factory=list)

    def add(self, spec: Mapping[str, object]) -> None:
        """Adds one fault: its name as `fault`, its options, and optionally `times` and `match`.

        `times` is the number of generations that it applies to (default: until cleared), `match` a text that their
        prompt must contain.

        Raises ValueError for a fault that is not in the vocabulary.
        """
        options = {name: value for name, value in spec.items() if name not in ("fault", "times", "match")}
        fault = make_fault(str(spec.get("fault")), options)
        # Checks the values of the options now, so that the control endpoint refuses them and not a later request.
        plan_faults([fault])
        times = spec.get("times")
        if times is not None and (not isinstance(times, int) or times < 1):
            raise ValueError("'times' must be an integer from 1")
        self._entries.append(_RegisteredFault(fault, times, str(spec.get("match", ""))))

    def clear(self) -> None:
        self._entries.clear()

    def take_matching(self, prompt: str) -> list[Fault]:
        """The faults for one generation with this prompt. Counts down `times` and removes exhausted faults."""
        matching = []
        # A copy, since exhausted entries are removed during the iteration.
        for entry in list(self._entries):
            if entry.fault.kind in ENGINE_FAULTS or entry.match not in prompt:
                continue
            matching.append(entry.fault)
            if entry.times is not None:
                entry.times -= 1
                if entry.times == 0:
                    self._entries.remove(entry)
        return matching

    def engine_fault(self, kind: str) -> Fault | None:
        """The engine fault of this kind that was set last, if any."""
        # The last one wins.
        return next((entry.fault for entry in reversed(self._entries) if entry.fault.kind == kind), None)

    def add_engine_fault(self, fault: Fault) -> None:
        self._entries.append(_RegisteredFault(fault, None, ""))

    def list_faults(self) -> list[dict[str, object]]:
        """The active faults in the form that `add` accepts."""
        return [
            {"fault": entry.fault.kind, **dict(entry.fault.options), "times": entry.times, "match": entry.match}
            for entry in self._entries
        ]
