"""Explains to people what the cache would do with a request and why, without a generation."""

from typing import Any, Final, Literal, assert_never

import msgspec

from router.core.cache.cache_control import NO_DIRECTIVES
from router.core.cache.fingerprint import Fingerprint, MissReason
from router.core.cache.key_parts import KeyParts
from router.core.cache.policy import KEPT_AT_ENGINE, decide_caching
from router.core.cache.redis_keys import EMPTY_HASH
from router.core.cache.sample import Sample
from router.core.endpoints.chat import CHAT
from router.core.endpoints.recording.replay import replay
from router.core.endpoints.responses import RESPONSES
from router.core.endpoints.table import ENDPOINT_BY_PATH
from router.core.types import DEFAULT_TENANT, CacheStatus, Task
from router.errors import bad_request
from router.flow.explain.whole_turn import WholeTurn, whole_turn
from router.flow.lookup import CachePolicy
from router.flow.parsed_request import ParsedRequest
from router.flow.request_resolver import RequestResolver
from router.shared.status.status_documents import RequestRow
from router.store.admin.listing import EntrySummary, fetch_summaries
from router.store.admin.nearest import NearestEntry, decode_ascii, find_nearest
from router.store.admin.purge_record import is_purged
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock
from router.store.codec import decode_entry

MAX_COMPARED_ENTRIES: Final = 20_000
"""Maximum number of the tenant's entries among which the nearest is searched."""

MissState = Literal["absent", "stale", "other-digest", "unreadable", "purged", "no-such-form"]

KeyState = Literal["fresh"] | MissState
"""What is at the key in Redis:

- absent: nothing;
- fresh, stale: a response within its time to live, or beyond it;
- other-digest: the response to another request with the same hashes;
- unreadable: no entry, or a damaged one;
- purged: a response that a purge covers, written after the purge had deleted;
- no-such-form: a response that cannot be replayed in the form that the request asks for (stream or JSON).
"""

_PART_DESCRIPTIONS: Final[dict[MissReason, str]] = {
    "model": "the model, or its revision in the configuration",
    "system": "the text of the system messages",
    "rag": "the documents, or the text between the context markers",
    "query": "the messages: their text, order and roles",
    "params": "the other fields, such as temperature or max_tokens, the order within JSON schemas, or the endpoint",
}


class ExplainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to explain: its tenant, its path, and its body as JSON."""

    body: msgspec.Raw
    tenant: str = DEFAULT_TENANT
    path: str = CHAT.path


class KeyPart(msgspec.Struct, frozen=True):
    """A part of the key: its value, and in words what it was derived from."""

    part: str
    value: str
    made_of: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """`result` is what X-Cache would be, with all engines up; `why` explains it in a sentence.

    - `reason` is a value of X-Cache-Reason; None on a hit, and where no value describes the state of the key.
    - `state` is what is at the key, `entry` its summary. Both are None if there would be no lookup.
    - `nearest` is None on a hit and on a bypass; `differs` describes in words the parts in which it differs.
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


class SentExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache said to a request that was sent, and how its key compares with what is stored now.

    - `result`, `reason`: X-Cache and X-Cache-Reason of the response. `at`: seconds since the epoch.
    - `key` is None if nothing was looked up; then so are `nearest` and `entry`. `entry` is what is at the key now.
    - `why` is a sentence about now. `differs` describes in words the parts in which `nearest` differs.
    """

    request_id: str
    at: float
    tenant: str
    model: str
    result: str
    reason: str | None
    key: str | None
    why: str
    entry: EntrySummary | None = None
    nearest: NearestEntry | None = None
    differs: list[str] = []


class Explainer:
    """Explains requests as a router with this configuration would handle them.

    - It changes nothing, and sends nothing to engines.
    - A request that the router would refuse is refused here with the same ApiError.
    """

    def __init__(
        self, *, resolver: RequestResolver, client: RedisClient, policy: CachePolicy,
        max_conversation: int | None = None, max_compared: int = MAX_COMPARED_ENTRIES,
    ) -> None:  # fmt: skip
        """`max_conversation`: bytes of a conversation at /v1/responses; None if no responses are kept."""
        self._resolver = resolver
        self._client = client
        self._policy = policy
        self._max_conversation = max_conversation
        self._max_compared = max_compared

    async def explain(self, request: ExplainRequest) -> Explanation:
        """Raises ApiError for a request that would be refused, and RedisBackendError if Redis does not answer."""
        own = self._policy.tenants.get(request.tenant)
        if own is None:
            raise bad_request(f"Unknown tenant {request.tenant[:64]!r}.", param="tenant")
        endpoint = ENDPOINT_BY_PATH.get(request.path)
        if endpoint is None:
            raise bad_request(f"`path` must be one of {', '.join(ENDPOINT_BY_PATH)}.", param="path")
        turn = WholeTurn(bytes(request.body))
        if endpoint is RESPONSES and self._max_conversation is not None:
            turn = await whole_turn(self._client, request.tenant, turn.body, self._max_conversation)
        parsed = self._resolver.resolve(endpoint, request.tenant, turn.body)
        common: dict[str, Any] = {
            "key": parsed.key.text,
            "parts": _key_parts(parsed),
            "model": parsed.model.name,
            "task": parsed.task,
            "documents": list(parsed.parts.document_names()),
        }
        decision = decide_caching(parsed.request, NO_DIRECTIVES, own.store_policy, self._policy.remote_content)
        bypass, _ = self._policy.restrict(decision, request.tenant, parsed.model.configured_name)
        if turn.may_be_kept:
            bypass = bypass or KEPT_AT_ENGINE
        if bypass is not None:
            return Explanation(result=CacheStatus.BYPASS, reason=bypass.reason.value, why=bypass.explanation, **common)
        state, common["entry"] = await self._find_state(parsed, request.tenant)
        common["key"] = parsed.key.text
        if state == "fresh":
            count = parsed.sample.count
            why = "An entry is stored." if count == 1 else f"All {count} samples are stored, and handed out in turn."
            return Explanation(result=CacheStatus.HIT, reason=None, why=why, state=state, **common)
        nearest_entry = await find_nearest(self._client, parsed.fingerprint, parsed.key.text, self._max_compared)
        reason, why = _explain_miss(state, nearest_entry)
        return Explanation(
            result=CacheStatus.MISS, reason=reason, why=why, state=state, nearest=nearest_entry,
            differs=[_PART_DESCRIPTIONS[part] for part in nearest_entry.differs], **common,
        )  # fmt: skip

    async def explain_sent(self, row: RequestRow) -> SentExplanation:
        """A request by what is known of it afterwards, its key. Raises RedisBackendError."""
        sent: dict[str, Any] = {
            "request_id": row.request_id,
            "at": row.at,
            "tenant": row.tenant,
            "model": row.model,
            "result": row.cache or "",
            "reason": row.reason,
            "key": row.key,
        }
        parts = KeyParts.try_parse(row.key or "")
        if parts is None:
            return SentExplanation(why="Nothing was looked up for this request.", **sent)
        (halves,) = await execute_commands(self._client, [("HMGET", parts.text, "question", "params")])
        (entry,) = await fetch_summaries(self._client, [parts.text])
        # The halves of the key's last part stand in the entry only. Without one, a difference in either is `query`.
        fingerprint = Fingerprint(parts, *(decode_ascii(half) for half in halves or (None, None)))
        nearest = await find_nearest(self._client, fingerprint, parts.text, self._max_compared)
        if entry is not None:
            why = "A response is stored at the key now; an equal request is a hit until it expires."
        else:
            why = f"Nothing is stored at the key now. {_explain_absence(nearest)[1]}"
        differs = [_PART_DESCRIPTIONS[part] for part in nearest.differs]
        return SentExplanation(why=why, entry=entry, nearest=nearest, differs=differs, **sent)

    async def _find_state(self, parsed: ParsedRequest, tenant: str) -> tuple[KeyState, EntrySummary | None]:
        """Of the first sample that is not fresh, else of the last one; the request has its key then."""
        count = self._policy.samples(tenant, parsed.model.configured_name)
        for sample in Sample(0, 1 if parsed.request.deterministic else count).in_order():
            parsed.use_sample(sample)
            state, entry = await self._key_state(parsed)
            if state != "fresh":
                break
        return state, entry

    async def _key_state(self, parsed: ParsedRequest) -> tuple[KeyState, EntrySummary | None]:
        key = parsed.key
        (fields,) = await execute_commands(self._client, [("HGETALL", key.text)])
        (summary,) = await fetch_summaries(self._client, [key.text])
        if summary is None:
            return "absent", None
        entry = decode_entry(fields or {})
        if entry is None:
            return "unreadable", summary
        if await is_purged(self._client, key.text, entry.documents, entry.purges):
            return "purged", summary
        if entry.digest != key.digest:
            return "other-digest", summary
        if replay(entry, parsed.request) is None:
            return "no-such-form", summary
        # Redis' clock, as in the router: this command may run on a machine whose clock differs.
        now = (await read_redis_clock(self._client)).now()
        return "stale" if now - entry.created > entry.ttl else "fresh", summary


def _explain_miss(state: MissState, nearest: NearestEntry) -> tuple[str | None, str]:
    match state:
        case "stale":
            return "expired", "The stored response is stale; it is served only while the engines are down."
        case "other-digest":
            return None, "The entry at the key belongs to another request with the same hashes."
        case "unreadable":
            return None, "The value at the key is not a valid entry; the next response replaces it."
        case "purged":
            return "purged", "The entry at the key was purged while it was generated; the next response replaces it."
        case "no-such-form":
            return None, "The stored response cannot be replayed in the form requested (stream or JSON)."
        case "absent":
            return _explain_absence(nearest)
        case _:
            assert_never(state)


def _explain_absence(nearest: NearestEntry) -> tuple[MissReason, str]:
    if nearest.key is None:
        return "new", "The tenant has no stored responses."
    if not nearest.differs:
        return "sample", "Another sample of the request is stored; this one is added when it is next."
    if len(nearest.differs) == 1:
        part = nearest.differs[0]
        return part, f"A response is stored for a request that differs in one part: {part}."
    return "new", "None of the compared entries differs in only one part."


def _key_parts(parsed: ParsedRequest) -> list[KeyPart]:
    parts, key, revision = parsed.parts, parsed.key.parts, parsed.model.revision_at(parsed.engine_revision)
    model_text = f"`{parsed.request.model}`" + (f", revision {revision!r}" if revision else "")
    system_text = (
        f"{sum(map(len, parts.system))} characters of system text" if key.system != EMPTY_HASH else "no system text"
    )
    count = len(parts.document_names())
    context_text = f"{count} documents or pieces of context" if key.rag != EMPTY_HASH else "no retrieved context"
    question, params = parsed.fingerprint.question, parsed.fingerprint.params
    query_text = f"the messages ({question}), the other fields ({params}), the model's revision"
    return [
        KeyPart("tenant", key.tenant, "the tenant of the request"),
        KeyPart("model", key.model, model_text),
        KeyPart("system", key.system, system_text),
        KeyPart("rag", key.rag, context_text),
        KeyPart("query", key.query, query_text),
    ]
