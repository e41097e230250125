"""A turn for the engine that may have kept the response before it, with what its own tools said.

vLLM keeps that if VLLM_ENABLE_RESPONSES_API_STORE is set. The output has the calls of these tools alone, and an input
with such calls is refused ("Unsupported input item type"). Of what it keeps itself, vLLM leaves calls of the client's
tools out, unless the model is gpt-oss. So a turn after such a call is sent whole where it can be.
"""

from typing import NamedTuple

import msgspec

from router.core.endpoints.conversations.items import find_calls, list_of
from router.core.endpoints.conversations.turn import PREVIOUS_ID
from router.core.endpoints.endpoint import InferenceRequest

_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def is_best_kept(items: bytes, output: bytes) -> bool:
    """Whether an engine that has kept a conversation knows more of it than its items say.

    `output`: of the last response.
    """
    return find_calls(items)[0] or not find_calls(output)[1]


class TurnAtEngine(NamedTuple):
    """`engine`: its name. `items`: of the turn's own input.

    `request` is what that engine gets in place of `whole`, which has all that was said before.
    """

    engine: str
    previous_id: str
    items: bytes

    def request(self, whole: InferenceRequest) -> InferenceRequest:
        own = {"input": msgspec.Raw(list_of(self.items)), PREVIOUS_ID: msgspec.Raw(_encode(self.previous_id))}
        return msgspec.structs.replace(whole, body=_encode({**_decode(whole.body), **own}))
