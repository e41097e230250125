"""How long the answers of a model are."""

from typing import Final

from router.core.types import Task

_DEFAULT_ANSWER_TOKENS: Final = 256.0
_MEMORY: Final = 60.0  # answers after which an older one has 1/e of its weight


class AnswerLengths:
    """The mean length of answers in tokens, by model and task. Its size is bounded by the number of models."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, Task], float] = {}

    def add(self, model: str, task: Task, tokens: int) -> None:
        mean = self._means.get((model, task), _DEFAULT_ANSWER_TOKENS)
        self._means[model, task] = mean + (tokens - mean) / _MEMORY

    def expected(self, model: str, task: Task, max_tokens: int | None) -> float:
        mean = self._means.get((model, task), _DEFAULT_ANSWER_TOKENS)
        return max(1.0, min(mean, max_tokens) if max_tokens else mean)
