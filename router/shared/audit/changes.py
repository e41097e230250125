"""What an administrator can change, in the words of the audit: the same from the admin API and the command line.

No change has a secret, a prompt or an answer. A text that was searched for may be someone's name, and its hash could be
guessed, so of that only the length is kept.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

from msgspec.structs import replace

from router.core.api_keys import KeyRecord
from router.core.cache.entry_filter import EntryFilter, text_document_name
from router.core.printable import escape_unprintable

Action = Literal[
    "drain", "resume", "restart", "sleep", "wake", "purge", "reload", "key_created", "key_revoked", "switch",
    "rollback", "adapter_loaded", "adapter_unloaded", "import",
]  # fmt: skip

ACTIONS: Final[tuple[str, ...]] = get_args(Action)

MAX_TEXT: Final = 200
"""Characters of a text; a longer one is cut."""

MAX_NAMES: Final = 20
"""Names in a list; of a longer one, the others are counted."""

INTERRUPTED: Final = "interrupted"
"""The `result` of a change that a signal, or the end of the router, has ended half-way."""

_DONE: Final = "done"

Detail = str | int | bool | Sequence[str] | None


class Change(NamedTuple):
    """`subject`: what was changed: an engine, a key, a filter. `details`: short, in the order for people."""

    action: Action
    subject: str
    details: Mapping[str, Detail] = {}


def bounded(text: str) -> str:
    """The text without characters that a terminal acts on, and cut."""
    shown = escape_unprintable(text)
    return shown if len(shown) <= MAX_TEXT else shown[: MAX_TEXT - 1] + "…"


def bounded_details(details: Mapping[str, Detail]) -> dict[str, Detail]:
    """Without what is None or empty."""
    return {
        name: _bounded_detail(value) for name, value in details.items() if value is not None and value not in ("", ())
    }


def _bounded_detail(value: Detail) -> Detail:
    if isinstance(value, str):
        return bounded(value)
    if not isinstance(value, Sequence):
        return value
    rest = [f"and {len(value) - MAX_NAMES:,} more"] if len(value) > MAX_NAMES else []
    return [*[bounded(name) for name in value[:MAX_NAMES]], *rest]


def engine_drained(engine: str, *, everywhere: bool = True) -> Change:
    """`everywhere`: Redis has it, so all routers apply it."""
    return Change("drain", engine, {"everywhere": everywhere})


def engine_resumed(engine: str, *, everywhere: bool = True) -> Change:
    return Change("resume", engine, {"everywhere": everywhere})


def engine_ordered(engine: str, group: str, *, sleeps: bool) -> Change:
    """An engine that takes turns at a GPU, the group, is to sleep, or to wake up."""
    return Change("sleep" if sleeps else "wake", engine, {"gpu": group})


def engine_restarted(engine: str, result: str | None = None) -> Change:
    """`result`: None if it is ready again."""
    return Change("restart", engine, {"result": result})


def engines_switched(
    action: Literal["switch", "rollback"], engine: str, model: str, revision: str, versions: Sequence[str]
) -> Change:
    """`versions`: what each engine runs from now on, if several were switched."""
    return Change(action, engine, {"model": model, "revision": revision, "engines": versions})


def result_text(error: BaseException) -> str:
    """The `result` of a change that ended half-way."""
    return failed(str(error) or type(error).__name__) if isinstance(error, Exception) else INTERRUPTED


def failed(problem: str) -> str:
    return f"failed: {problem}"


def half_done(change: Change, error: BaseException) -> Change:
    """One that may be done or not."""
    return change._replace(details={**change.details, "result": result_text(error)})


def entries_purged(
    scope: EntryFilter, entries: int, generations: int, *, recorded: bool, text: str | None = None
) -> Change:
    """`recorded`: see PurgeResult. `text`: None unless only answers that have it were purged."""
    counts = {**_length(text), "entries": entries, "generations": generations, "result": _DONE}
    return Change("purge", filter_text(scope), counts if recorded else {**counts, "recorded": False})


def purge_stopped(scope: EntryFilter, entries: int, error: BaseException, *, text: str | None = None) -> Change:
    """`entries`: those that are known to be deleted; some more may be."""
    return Change("purge", filter_text(scope), {**_length(text), "entries": entries, "result": result_text(error)})


def _length(text: str | None) -> dict[str, Detail]:
    return {"text_length": len(text)} if text is not None else {}


def entries_imported(source: str, stored: int, error: BaseException | None = None) -> Change:
    """`error`: why it ended half-way; then some more may be stored."""
    return Change("import", source, {"entries": stored, "result": _DONE if error is None else result_text(error)})


def configuration_reloaded(router: str, settings: Sequence[str]) -> Change:
    """`router`: `HOST:PID`. `settings`: the names of those that have other values now."""
    return Change("reload", router, {"changed": settings or "nothing"})


def key_created(record: KeyRecord) -> Change:
    end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.expires)) if record.expires is not None else None
    return Change("key_created", record.id, {"name": record.name, "tenant": record.tenant, "expires": end})


def key_revoked(record: KeyRecord) -> Change:
    return Change("key_revoked", record.id, {"name": record.name, "tenant": record.tenant})


def adapter_changed(adapter: str, model: str, engines: Sequence[str], *, loads: bool, in_place: bool) -> Change:
    """`engines`: each with what happened there."""
    details = {"model": model, "engines": engines, "in_place": in_place or None}
    return Change("adapter_loaded" if loads else "adapter_unloaded", adapter, details)


def filter_text(scope: EntryFilter) -> str:
    """`tenant=acme model=llama`; a document is named by its hash, since a filter may have all of its text."""
    if scope.document is not None:
        scope = replace(scope, document=text_document_name(scope.document))
    parts = ("key", "tenant", "model", "system", "rag", "document")
    return " ".join(f"{name}={value}" for name in parts if (value := getattr(scope, name)) is not None) or "all"
