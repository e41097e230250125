"""A turn for the engine that may have kept the response before it, with what its own tools said.

vLLM keeps that if VLLM_ENABLE_RESPONSES_API_STORE is set. The output has the calls of these tools alone, and an input
with such calls is refused ("Unsupported input item type").
"""

from typing import NamedTuple

import msgspec

from router.core.endpoints.conversations.items import list_of
from router.core.endpoints.conversations.turn import PREVIOUS_ID
from router.core.endpoints.endpoint import InferenceRequest

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class TurnAtEngine(NamedTuple):
    """`engine`: its name. `items`: of the turn's own input."""

    engine: str
    previous_id: str
    items: bytes

    def request(self, whole: InferenceRequest) -> InferenceRequest:
        """What that engine gets. `whole`: the same with all that was said before, for any engine."""
        own = {"input": msgspec.Raw(list_of(self.items)), PREVIOUS_ID: msgspec.Raw(_encode(self.previous_id))}
        return msgspec.structs.replace(whole, body=_encode({**_decode(whole.body), **own}))
