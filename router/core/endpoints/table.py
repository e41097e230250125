"""All endpoints whose requests are routed and cached."""

from collections.abc import Mapping
from typing import Final

from router.core.endpoints.audio import TRANSCRIPTIONS, TRANSLATIONS
from router.core.endpoints.chat import CHAT
from router.core.endpoints.completions import COMPLETIONS
from router.core.endpoints.embeddings import EMBEDDINGS
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.messages import MESSAGES
from router.core.endpoints.responses import RESPONSES

ENDPOINTS: Final = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, MESSAGES)
ENDPOINT_BY_PATH: Final[Mapping[str, Endpoint]] = {endpoint.path: endpoint for endpoint in ENDPOINTS}

UPLOAD_ENDPOINTS: Final = (TRANSCRIPTIONS, TRANSLATIONS)
"""Endpoints that take a form with a file: their requests are routed and not cached."""
