"""The lines of batches that this process has begun."""

from router.flow.exchange import Exchange


class BegunLine:
    """`exchange`: of its request; None before it is sent."""

    __slots__ = ("exchange",)

    def __init__(self) -> None:
        self.exchange: Exchange | None = None

    @property
    def is_placed(self) -> bool:
        """Whether it counts in the load of an engine, or needs none as another request does."""
        generation = self.exchange.generation if self.exchange is not None else None
        return generation is not None and (bool(generation.attempts) or generation.leader is not None)

    @property
    def engine(self) -> str | None:
        """The engine that has its last attempt."""
        generation = self.exchange.generation if self.exchange is not None else None
        return generation.attempts[-1].engine if generation is not None and generation.attempts else None


class BegunLines:
    """By the model's name as the client wrote it."""

    def __init__(self) -> None:
        self._lines: dict[str, set[BegunLine]] = {}
        self.count = 0

    def begin(self, model: str) -> BegunLine:
        line = BegunLine()
        self._lines.setdefault(model, set()).add(line)
        self.count += 1
        return line

    def end(self, model: str, line: BegunLine) -> None:
        lines = self._lines[model]
        lines.remove(line)
        if not lines:
            del self._lines[model]
        self.count -= 1

    def unplaced(self, model: str) -> int:
        return sum(not line.is_placed for line in self._lines.get(model, ()))

    def at_engine(self, engine: str) -> int:
        return sum(line.engine == engine for lines in self._lines.values() for line in lines)
