"""What requests for scores have in common: texts or multi-modal contents, of which the documents are scored.

Source: vLLM's entrypoints/pooling/scoring/protocol.py, which rerank and score implement.
"""

from typing import Any

from router.core.endpoints.requests.request_fields import RequestFields

ScoredTexts = str | dict[str, Any] | list[str | dict[str, Any]]
"""A text, an object whose `content` is a list of parts, as in a message, or a list of either."""


class ScoredFields(RequestFields):
    def max_answer_tokens(self) -> int | None:
        return None  # nothing is generated


def scored_count(texts: Any) -> int:
    return len(texts) if isinstance(texts, list) else 1
