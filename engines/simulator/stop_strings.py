"""Stop strings, found wherever tokens cut them, as vLLM's detokenizer finds them."""


class StopStringMatcher:
    """Watches the text of one answer; text that may be the start of a stop string is held back.

    `keep` leaves the stop string in the text (vLLM's `include_stop_str_in_output`).
    """

    def __init__(self, stops: tuple[str, ...], *, include_stop: bool) -> None:
        self._stops = stops
        self._include_stop = include_stop
        self._holdback = max(map(len, stops)) - 1 if stops and not include_stop else 0
        self._held = ""
        self._overlap = max(map(len, stops)) - 1 if stops else 0
        self._seen = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that may be shown now, and the stop string that ended it, if one did."""
        before = len(self._seen)
        self._seen += text
        found = [(at, stop) for stop in self._stops if (at := self._seen.find(stop)) >= 0]
        pending = self._held + text
        if found:
            at, stop = min(found, key=lambda item: item[0])
            end = at + len(stop) if self._include_stop else at
            start = before - len(self._held)
            return pending[: max(0, end - start)], stop
        # Only what could still begin a match has to be remembered.
        self._seen = self._seen[-self._overlap :] if self._overlap else ""
        cut = len(pending) - self._holdback
        self._held = pending[max(0, cut) :]
        return pending[: max(0, cut)], None

    def flush(self) -> str:
        """What is still held back when an answer ends without a stop string."""
        held, self._held = self._held, ""
        return held
