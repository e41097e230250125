"""Finds stop strings across token boundaries, as vLLM's detokenizer does."""


class StopStringMatcher:
    """Watches the text of one choice; text that may be the start of a stop string is held back.

    `include_stop` leaves the stop string in the text (vLLM's `include_stop_str_in_output`).
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        # With `include_stop` the text is sent either way, so nothing has to be held back.
        self._holdback = max(map(len, stops)) - 1 if stops and not include_stop else 0
        self._held = ""
        self._overlap = max(map(len, stops)) - 1 if stops else 0
        self._seen = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be sent now, and the stop string that ended the choice, if one did."""
        # `_seen` can begin before `_held`: it keeps enough text for a match across tokens.
        before = len(self._seen)
        self._seen += text
        matches = [(at, stop) for stop in self._stops if (at := self._seen.find(stop)) >= 0]
        pending = self._held + text
        if matches:
            # The match that starts first ends the text, even if another one was completed first.
            at, stop = min(matches, key=lambda item: item[0])
            end = at + len(stop) if self._include_stop else at
            start = before - len(self._held)
            return pending[: max(0, end - start)], stop
        # Only the text in which a match could still start is needed again.
        self._seen = self._seen[-self._overlap :] if self._overlap else ""
        cut = len(pending) - self._holdback
        self._held = pending[max(0, cut) :]
        return pending[: max(0, cut)], None

    def flush(self) -> str:
        """The text that is held back when a choice ends without a stop string."""
        held, self._held = self._held, ""
        return held
