"""All endpoints whose requests are routed and cached."""

from collections.abc import Mapping
from typing import Final

from router.core.endpoints.audio import TRANSCRIPTIONS, TRANSLATIONS
from router.core.endpoints.chat import CHAT
from router.core.endpoints.classify import CLASSIFY
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.count_tokens import COUNT_TOKENS
from router.core.endpoints.detokenize import DETOKENIZE
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.errors.error_envelope import OPENAI_ERRORS, ErrorEnvelope
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.pooling import POOLING
from router.core.endpoints.rerank import RERANK, RERANK_V1, RERANK_V2
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.score import SCORE, SCORE_V1
from router.core.endpoints.tokenize import TOKENIZE

ENDPOINTS: Final = (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    TOKENIZE,
    DETOKENIZE,
    POOLING,
    CLASSIFY,
    SCORE,
    SCORE_V1,
    RERANK,
    RERANK_V1,
    RERANK_V2,
)
ENDPOINT_BY_PATH: Final[Mapping[str, Endpoint]] = {endpoint.path: endpoint for endpoint in ENDPOINTS}

UPLOAD_ENDPOINTS: Final = (TRANSCRIPTIONS, TRANSLATIONS)
"""Endpoints that take a form with a file: their requests are routed and not cached."""


def errors_at(path: str) -> ErrorEnvelope:
    """The form of errors at a path, of an endpoint or not."""
    endpoint = ENDPOINT_BY_PATH.get(path)
    return endpoint.errors if endpoint is not None else OPENAI_ERRORS
