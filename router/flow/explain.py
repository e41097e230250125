"""What would become of a request in the cache, and why: told to people, without an engine being asked."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from router.core.cache.cache_control import NO_DIRECTIVES
from router.core.cache.fingerprint import MissReason
from router.core.cache.key_derivation import EMPTY_HASH
from router.core.cache.miss_reason import fingerprint_request
from router.core.cache.policy import RemoteContentPolicy, decide_caching, uncacheable_reason
from router.core.cache.policy import StorePolicy as StorePolicy
from router.core.endpoints.replay import replay
from router.core.types import DEFAULT_TENANT, CacheStatus, Endpoint, Task
from router.errors import bad_request
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.store.admin.listing import EntrySummary, fetch_summaries
from router.store.admin.nearest import NearestEntry, find_nearest
from router.store.admin.purge_record import is_purged
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock
from router.store.codec import decode_entry

MAX_COMPARED_ENTRIES: Final = 20_000
"""Entries of the tenant among which the nearest is looked for."""

KeyState = Literal["absent", "fresh", "stale", "other-digest", "unreadable", "purged", "no-such-form"]
"""What stands at the key: nothing; an answer, within its time or beyond it; the answer to another request; what is no
entry; an answer that a purge covers, and that was written too late for it to be deleted; an answer that has no form as
the request wants it."""

_PART_DESCRIPTIONS: Final[dict[MissReason, str]] = {
    "model": "the model, or its revision in the configuration",
    "system": "the text of the system messages",
    "rag": "the documents, or what stands between the context markers",
    "query": "the messages: what is asked, their order, their roles",
    "params": "the other fields, such as temperature or max_tokens, the order within JSON schemas, or the endpoint",
}


class ExplainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request that is to be explained: whose it is, the path it goes to, and its body as JSON."""

    body: msgspec.Raw
    tenant: str = DEFAULT_TENANT
    path: str = Endpoint.CHAT.value


class KeyPart(msgspec.Struct, frozen=True):
    """A part of the key: its value there, and what it was made of here."""

    part: str
    value: str
    made_of: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`result` is what X-Cache would be, with all engines up; `why` says it in words.

    - `reason` is one of X-Cache-Reason's words where one part differs, or the entry was there and is stale.
    - `state` is what stands at the key, `entry` that itself; both None where the cache would not be asked.
    - `nearest` is None on a hit; `differs` says in words in what it differs.
    """

    result: CacheStatus
    reason: str | None
    why: str
    key: str
    parts: list[KeyPart]
    model: str
    task: Task
    documents: list[str]
    state: KeyState | None = None
    entry: EntrySummary | None = None
    nearest: NearestEntry | None = None
    differs: list[str] = []


class Explainer:
    """Explains requests as the router that has this configuration would take them.

    - Nothing is changed, and no engine is asked.
    - What the router would refuse is refused here, with the same ApiError.
    """

    def __init__(
        self, *, resolver: RequestResolver, client: RedisClient, store_policies: Mapping[str, StorePolicy],
        remote_content: RemoteContentPolicy = "uncacheable", max_compared: int = MAX_COMPARED_ENTRIES,
    ) -> None:  # fmt: skip
        self._resolver = resolver
        self._client = client
        self._store_policies = store_policies
        self._remote_content = remote_content
        self._max_compared = max_compared

    async def explain(self, request: ExplainRequest) -> Explanation:
        """Raises ApiError for a request that would be refused, and LinkError where Redis does not answer."""
        store = self._store_policies.get(request.tenant)
        if store is None:
            raise bad_request(f"There is no tenant {request.tenant[:64]!r}.", param="tenant")
        try:
            endpoint = Endpoint(request.path)
        except ValueError:
            paths = ", ".join(known.value for known in Endpoint)
            raise bad_request(f"`path` must be one of {paths}.", param="path") from None
        reading = self._resolver.resolve(endpoint, request.tenant, bytes(request.body))
        told: dict[str, Any] = {
            "key": reading.key.text,
            "parts": _key_parts(reading),
            "model": reading.model.name,
            "task": reading.task,
            "documents": list(reading.parts.document_names()),
        }
        bypass, _ = decide_caching(reading.request, NO_DIRECTIVES, store, self._remote_content)
        if bypass is not None:
            why = uncacheable_reason(reading.request, self._remote_content)
            if why is None:
                why = f'cache.store is "{store}", and the request has neither temperature 0 nor a seed.'
            return Explanation(result=CacheStatus.BYPASS, reason=bypass.value, why=why, **told)
        state, told["entry"] = await self._key_state(reading)
        if state == "fresh":
            return Explanation(result=CacheStatus.HIT, reason=None, why="Its answer is stored.", state=state, **told)
        near = await find_nearest(
            self._client, fingerprint_request(reading.key.text, reading.parts), reading.key.text, self._max_compared
        )
        reason, why = _explain_miss(state, near)
        return Explanation(
            result=CacheStatus.MISS, reason=reason, why=why, state=state, nearest=near,
            differs=[_PART_DESCRIPTIONS[part] for part in near.differs], **told,
        )  # fmt: skip

    async def _key_state(self, parsed: ParsedRequest) -> tuple[KeyState, EntrySummary | None]:
        key = parsed.key
        (fields,) = await execute_commands(self._client, [("HGETALL", key.text)])
        (shown,) = await fetch_summaries(self._client, [key.text])
        if shown is None:
            return "absent", None
        entry = decode_entry(fields or {})
        if entry is None:
            return "unreadable", shown
        if await is_purged(self._client, key.text, entry.documents, entry.purges):
            return "purged", shown
        if entry.digest != key.digest:
            return "other-digest", shown
        if replay(entry, parsed.request) is None:
            return "no-such-form", shown
        now = (await read_redis_clock(self._client)).now()
        return "stale" if now - entry.created > entry.ttl else "fresh", shown


def _explain_miss(state: KeyState, near: NearestEntry) -> tuple[str | None, str]:
    match state:
        case "stale":
            return "expired", "Its answer is stored and has outlived its time; it is given only while engines are down."
        case "other-digest":
            return None, "What stands at its key is the answer to another request, with the same hashes."
        case "unreadable":
            return None, "What stands at its key is no entry; the next answer takes its place."
        case "purged":
            return None, "What stands at its key was purged while it was generated; the next answer takes its place."
        case "no-such-form":
            return None, "Its answer is stored, but has no form such as the request asks for (stream or JSON)."
    if near.key is None:
        return "new", "The tenant has no answers stored."
    if len(near.differs) == 1:
        return near.differs[0], f"Another answer is stored for a request that differs in one part: {near.differs[0]}."
    return "new", "Of the stored answers that were compared, none is for a request that differs in one part alone."


def _key_parts(parsed: ParsedRequest) -> list[KeyPart]:
    parts, key, revision = parsed.parts, parsed.key.text, parsed.model.revision
    _, _, tenant, model, system, rag, query = key.split(":")
    asked = f"`{parsed.request.model}`" + (f", revision {revision!r}" if revision else "")
    said = f"{sum(map(len, parts.system))} characters of system text" if system != EMPTY_HASH else "no system text"
    context = (
        f"{len(parts.document_names())} documents or pieces of context" if rag != EMPTY_HASH else "no retrieved context"
    )
    last = fingerprint_request(key, parts)
    rest = f"the messages ({last.question}), the other fields ({last.params}), the model's revision"
    return [
        KeyPart("tenant", tenant, "who asks"),
        KeyPart("model", model, asked),
        KeyPart("system", system, said),
        KeyPart("rag", rag, context),
        KeyPart("query", query, rest),
    ]
