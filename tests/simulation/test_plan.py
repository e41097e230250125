import msgspec

from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.endpoints.chat import CHAT
from router.core.endpoints.requests.request import parse_request
from router.core.routing.traffic_share import request_point
from tests.simulation.clients import request_body
from tests.simulation.plan import MAX_QUESTIONS
from tests.simulation.routers import STANDBY_SHARE, TENANTS


def test_no_request_falls_into_the_share_of_the_standby() -> None:
    """A stream there can be continued nowhere else, which would count as a failure without a fault."""
    for tenant in TENANTS:
        for question in range(1, MAX_QUESTIONS + 1):
            for limited in (False, True):
                request = parse_request(CHAT, msgspec.json.encode(request_body(question, limited=limited)))
                key = derive_cache_key(
                    split_parts(request, ContextMarkers()), tenant=tenant, model="llama", revision=""
                )
                assert request_point("llama", tenant, None, key.text) >= STANDBY_SHARE
