"""LoRA adapters that engines list in /v1/models: models of their own, which share the engines of their base model.

Theory. An engine's list is text of another process, so it is bounded, and nothing of it gets into a Redis key or a
metric as it is. The name of an adapter in keys, log lines and metrics is made of the base model's name, the readable
characters of the id, and a hash of both. What an adapter answers with depends on the weights behind its id. The router
knows only the path that the engine has loaded it from, so id and path are in the revision, and thus in each key.

Engines that list one id with different paths hold different weights, as far as is known. Only those with the path that
most of them have get its requests; of equally many, those with the last path in the order of the text. So all routers
agree.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import msgspec
import xxhash

MAX_ADAPTERS: Final = 1000
"""Adapters of one engine that a router takes up; further ones are ignored."""

MAX_ID_LENGTH: Final = 256
"""Characters of an adapter's id; a longer one is ignored."""

MAX_ROOT_LENGTH: Final = 4096
"""Characters of an adapter's path, which is Linux' limit of a path; an adapter with a longer one is ignored."""

_MAX_BASE: Final = 30  # characters; with the others, a name has 64 at most, as in the configuration
_MAX_SLUG: Final = 24
_HASH_DIGITS: Final = 8
_NOT_IN_NAME: Final = re.compile(r"[^a-z0-9._-]+")


class ListedAdapter(msgspec.Struct, frozen=True):
    """An adapter in an engine's list. `root`: the path or repository that the engine has loaded it from."""

    id: str
    root: str


class Adapter(msgspec.Struct, frozen=True):
    """An adapter as a model. `base`: the name of its base model in the configuration."""

    id: str
    root: str
    base: str


class FoundAdapters(msgspec.Struct, frozen=True):
    """`engines`: the names of the engines that serve each adapter. `problems`: why some are left out, a line each."""

    engines: Mapping[Adapter, Sequence[str]]
    problems: Sequence[str]


def is_valid(adapter: ListedAdapter) -> bool:
    return (
        0 < len(adapter.id) <= MAX_ID_LENGTH
        and adapter.id.isprintable()
        and not adapter.id.isspace()
        and len(adapter.root) <= MAX_ROOT_LENGTH
        and adapter.root.isprintable()  # it may be shown in a terminal, and a lone surrogate has no UTF-8
    )


def adapter_name(base: str, adapter_id: str) -> str:
    """The adapter's name in keys, log lines and metrics: as in the configuration, `[a-z0-9._-]{1,64}`."""
    slug = _NOT_IN_NAME.sub("-", adapter_id.lower())[:_MAX_SLUG]
    digest = xxhash.xxh3_64_hexdigest(f"{base}\0{adapter_id}".encode())[:_HASH_DIGITS]
    return f"{base[:_MAX_BASE]}.{slug}.{digest}"


def adapter_revision(base_revision: str, adapter: Adapter) -> str:
    """What identifies the weights of an adapter, for its key: JSON, so that no two adapters have the same text."""
    return msgspec.json.encode([base_revision, adapter.id, adapter.root]).decode()


def find_adapters(
    listed: Iterable[tuple[str, str, Sequence[ListedAdapter]]], configured_names: Set[str]
) -> FoundAdapters:
    """The adapters of all engines. `listed`: by engine, its name, its model, and its list.

    `configured_names`: the names and aliases of the configuration, which count more.
    """
    problems: list[str] = []
    # By id: an id that engines of two models list would not tell which of them is meant.
    engines_by_id: dict[str, dict[tuple[str, str], list[str]]] = {}
    for engine, model, adapters in listed:
        for adapter in adapters:
            engines_by_id.setdefault(adapter.id, {}).setdefault((model, adapter.root), []).append(engine)
    found: dict[Adapter, Sequence[str]] = {}
    names: dict[str, str] = {}
    for adapter_id, engines_by_source in sorted(engines_by_id.items()):
        counts = Counter({source: len(engines) for source, engines in engines_by_source.items()})
        base, root = max(counts, key=lambda source: (counts[source], source))
        name = adapter_name(base, adapter_id)
        if adapter_id in configured_names or name in configured_names:
            problems.append(f"adapter {adapter_id!r}: the configuration has a model or an alias of that name")
            continue
        if names.setdefault(name, adapter_id) != adapter_id:
            problems.append(f"adapter {adapter_id!r}: its name in keys is that of the adapter {names[name]!r}")
            continue
        left_out = sorted(e for source, engines in engines_by_source.items() if source != (base, root) for e in engines)
        if left_out:
            problems.append(
                f"adapter {adapter_id!r}: requests go only to the engines that have loaded it from {root!r} for the "
                f"model {base}, not to {', '.join(left_out)}"
            )
        found[Adapter(adapter_id, root, base)] = engines_by_source[base, root]
    return FoundAdapters(found, problems)
