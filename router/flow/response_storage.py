"""What is stored of a response, and for how long."""

import time
from collections.abc import Callable
from functools import partial

from router.core.cache.miss_reason import PartHashes, SeenKeys
from router.core.endpoints.recording.recorded_response import NotStoredReason, RecordedResponse
from router.core.types import Entry
from router.flow.exchange import Exchange, GenerationRecord
from router.flow.lookup import CachePolicy
from router.flow.parsed_request import ParsedRequest
from router.flow.sharing.new_generation import StoreResponse
from router.flow.trace.request_trace import GenerationTrace
from router.shared.cache.purges import Purges
from router.shared.cache.retention import WorthRetention
from router.shared.prompts.recent_prompts import PromptSample, RecentPrompts
from router.store.entry_store import WriteResult
from router.store.entry_writer import EntryWriter


class ResponseStorage:
    """Stores responses under the keys of their requests, for the time that policy and client allow."""

    def __init__(
        self, *, writer: EntryWriter, purges: Purges, seen_keys: SeenKeys, cache_policy: CachePolicy,
        recent_prompts: RecentPrompts, retention: WorthRetention | None,
        record_write: Callable[[str], None], clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`retention`: None keeps every entry for its TTL. `record_write` gets the result of every write of an entry.

        `clock`: see CacheLookup.
        """
        self._writer = writer
        self._purges = purges
        self._seen_keys = seen_keys
        self._cache_policy = cache_policy
        self._recent_prompts = recent_prompts
        self._retention = retention
        self._record_write = record_write
        self._clock = clock

    def callback(self, exchange: Exchange, parsed: ParsedRequest) -> StoreResponse:
        """The callback that stores the response under the request's key, at most for as long as the client allows."""
        ttl = self._cache_policy.tenants[exchange.tenant].ttl
        lifetime = ttl if parsed.control.ttl is None else min(ttl, parsed.control.ttl)
        # A client-supplied TTL also disables stale-if-error.
        stale = self._cache_policy.stale_if_error if lifetime == ttl else 0.0
        # The position is taken now, at the start: a purge during the generation then covers the entry.
        documents, purge_position = parsed.parts.document_names(), self._purges.last_position

        def store_response(
            recorded: RecordedResponse | NotStoredReason, record: GenerationRecord, trace: GenerationTrace
        ) -> None:
            if isinstance(recorded, NotStoredReason):
                self._seen_keys.add_not_stored(parsed.part_hashes)
                return
            engine = record.engine
            assert engine is not None
            entry = Entry(
                digest=parsed.key.digest,
                body=recorded.body,
                stream=recorded.stream,
                model=parsed.model.name,
                engine=engine,
                task=record.origin.task,
                created=int(1000 * self._clock()) / 1000,
                ttl=lifetime,
                stale=stale,
                prompt_tokens=recorded.prompt_tokens,
                completion_tokens=recorded.completion_tokens,
                generation_ms=record.generation_ms(time.perf_counter()),
                documents=documents,
                question=parsed.fingerprint.question,
                params=parsed.fingerprint.params,
            )
            sample: PromptSample | None = None
            # A new engine of the model is warmed up with these requests, each once, and it need not have the adapter.
            if record.origin.adapter is None and parsed.sample.number == 0:
                sample = self._recent_prompts.sample(
                    parsed.request, record, key=parsed.key.text, documents=documents, position=purge_position,
                    lifetime=lifetime,
                )  # fmt: skip
            if sample is not None:
                self._recent_prompts.add(sample)
            trace.start_write()
            on_written = partial(self._on_written, parsed.part_hashes, sample, trace)
            kept = None if self._retention is None else self._retention.lifetime(parsed.key.text, entry)
            self._writer.put(parsed.key.text, entry, purge_position, on_written, kept)

        return store_response

    def _on_written(
        self, part_hashes: PartHashes, sample: PromptSample | None, trace: GenerationTrace, result: WriteResult
    ) -> None:
        trace.end_write(result)
        if result == "stored":  # else a later miss would be reported as "expired", although nothing was stored
            self._seen_keys.add(part_hashes)
        else:
            if sample is not None:
                self._recent_prompts.remove(sample)
            if result == "purged":
                self._seen_keys.add_purged(part_hashes)
            else:
                self._seen_keys.add_not_stored(part_hashes)
        self._record_write(result)
