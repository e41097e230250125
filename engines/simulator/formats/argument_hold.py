"""A tool parser that holds arguments back, as some of vLLM's do: the name comes at once, and the rest when it is whole.

Meanwhile the engine generates, and its counters move, but its client gets no byte.
"""

from dataclasses import replace

from engines.simulator.engine.core import Delta
from engines.simulator.text.answers import Token, TokenKind


class ArgumentHold:
    """Changes the deltas of one response, which may have several choices."""

    def __init__(self) -> None:
        self._held: dict[int, list[Token]] = {}

    def feed(self, delta: Delta) -> Delta:
        """The delta without arguments of a call that is not whole, and with those of one that is."""
        held, parts = self._held.setdefault(delta.index, []), []
        for part in delta.parts:
            if part.kind is TokenKind.TOOL_ARGUMENTS and (not held or held[0].call_index == part.call_index):
                held.append(part)
                continue
            parts += _joined(held)
            held.clear()
            (held if part.kind is TokenKind.TOOL_ARGUMENTS else parts).append(part)
        if delta.finish_reason is not None:
            parts += _joined(held)
            held.clear()
        return replace(delta, parts=parts)


def _joined(tokens: list[Token]) -> list[Token]:
    return [replace(tokens[0], text="".join(token.text for token in tokens))] if tokens else []
