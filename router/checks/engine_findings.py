"""Judges what one server said of itself."""

import ipaddress
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from router.checks.engine_facts import EngineFacts
from router.checks.finding import Finding, Level, Problem, wrong
from router.core.plural import pluralize

_MAX_NAMES: Final = 10
_LONGEST_NAME: Final = 256
_ENOUGH_TOKENS: Final = 100
"""Generated tokens after which an engine with a draft must have drafted: every step after the first token drafts."""


def judge_engine(facts: EngineFacts, *, may_sleep: bool = False) -> Iterator[Finding]:
    """`may_sleep`: its model has `wake`, so it may be down on purpose."""
    what = f"engine {facts.engine.name} at {facts.url}"
    if _sends_key_in_clear(facts):
        problem = Problem(
            "gets its api_key unencrypted", "use https://, unless the network is trusted on the whole way to it"
        )
        yield wrong(what, facts.setting, problem, "warning")
    if facts.problem is not None:
        # Most of these are due to the URL; a refused key and an unknown authority have settings of their own.
        key = next((name for name in ("api_key", "ca_file") if name in facts.problem.fix.split()), None)
        level: Level = "warning" if may_sleep and key is None else "error"
        yield wrong(what, facts.setting if key is None else f"{facts.table}.{key}", facts.problem, level)
        return
    names = facts.names or ()
    if facts.served not in names:
        note = f"serves {_listed(names)} but not {facts.served!r}"
        fix = "set it to a name that the engine serves, or start the engine with --served-model-name"
        yield wrong(what, f"{facts.table}.served_model", Problem(note, fix))
        return
    yield Finding(what, f"serves {facts.served}" + (f" ({facts.kind})" if facts.kind is not None else ""))
    yield from _judge_context(what, facts)
    yield from _judge_ranks(what, facts)
    yield from _judge_launch(what, facts)


def _judge_context(what: str, facts: EngineFacts) -> Iterator[Finding]:
    configured, own = facts.engine.max_model_len, facts.max_model_len
    if configured is not None and own is not None and configured > own:
        note = f"takes {own} tokens, but max_model_len is {configured}: it refuses the requests between"
        fix = f"set it to {own}, or remove it: the router asks the engine"
        yield wrong(what, f"{facts.table}.max_model_len", Problem(note, fix))


def _judge_ranks(what: str, facts: EngineFacts) -> Iterator[Finding]:
    configured, own = facts.engine.data_parallel, facts.ranks
    if own is None or own == configured:
        return
    note = f"has {pluralize(own, 'data-parallel rank')}, but data_parallel is {configured}"
    if own < configured:
        problem = Problem(f"{note}: it refuses the requests for the others", f"set it to {own}")
        yield wrong(what, f"{facts.table}.data_parallel", problem)
    else:
        problem = Problem(f"{note}: the router does not know which one holds a prompt", f"set it to {own}")
        yield wrong(what, f"{facts.table}.data_parallel", problem, "warning")


def _judge_launch(what: str, facts: EngineFacts) -> Iterator[Finding]:
    launch = facts.engine.launch
    if launch is None:
        return
    if facts.root is not None and _are_different_models(facts.root, launch.target):
        note = f"runs {facts.root}, but launch.target is {launch.target}"
        fix = "restart the engine (`roundhouse engines restart`), or correct it"
        yield wrong(what, f"{facts.table}.launch.target", Problem(note, fix))
    if launch.speculation_method is None or facts.counters is None:
        return
    drafts, generated = facts.counters
    place = f"{facts.table}.launch.{'draft' if launch.draft is not None else 'speculation'}"
    restart = "restart the engine with --speculative-config (`roundhouse engines restart`), or remove it"
    if drafts is None:
        problem = Problem("runs without speculative decoding: it has no counters for it", restart)
        yield wrong(what, place, problem, "warning")
    elif not drafts and (generated or 0) >= _ENOUGH_TOKENS:
        note = f"has drafted nothing in {generated:.0f} tokens"
        fix = "see the engine's log; speculation_max_batch may be too low for its load"
        yield wrong(what, place, Problem(note, fix), "warning")


def _are_different_models(name: str, other: str) -> bool:
    """Only for names of a hub: an engine may know its model by another path than the configuration does."""
    return name != other and all(text.count("/") == 1 and text[0] not in "/.~" for text in (name, other))


def _sends_key_in_clear(facts: EngineFacts) -> bool:
    parts = urlsplit(facts.url)
    secrets = {"authorization", "x-api-key", "api-key"} & facts.engine.request_headers.keys()
    return parts.scheme == "http" and bool(secrets) and not is_loopback(parts.hostname or "")


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _listed(names: tuple[str, ...]) -> str:
    """For a terminal, so without control characters; a hosted API has hundreds."""
    shown = [
        name if name.isprintable() and len(name) <= _LONGEST_NAME else repr(name[:_LONGEST_NAME]) for name in names
    ]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(shown[:_MAX_NAMES]) or "no model") + more
