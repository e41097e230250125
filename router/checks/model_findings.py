"""Judges engines together: the same server twice, and engines of a model that differ."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from router.checks.engine_facts import CHAT_PATH, EngineFacts
from router.checks.finding import Finding, Problem, wrong
from router.settings import Settings
from router.settings.mistakes import written
from router.settings.tables import ModelSettings

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def judge_models(settings: Settings, engines: Sequence[EngineFacts]) -> Iterator[Finding]:
    yield from _repeated_servers(engines)
    by_model: dict[str, list[EngineFacts]] = {model.name: [] for model in settings.model}
    for facts in engines:
        by_model[facts.engine.model].append(facts)
    for index, model in enumerate(settings.model):
        yield from _different_lengths(model, by_model[model.name])
        yield from _different_tasks(index, model, by_model)


def same_server(url: str) -> str:
    """A text that is equal for URLs of the same server. The path has no `/v1` and no slash at its end."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return url
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.hostname}:{port}{parts.path}"


def _repeated_servers(engines: Sequence[EngineFacts]) -> Iterator[Finding]:
    """A server with several models may stand behind several engines, but only once for each model."""
    first: dict[tuple[str, str, str], EngineFacts] = {}
    for facts in engines:
        key = (same_server(facts.url), facts.served, facts.engine.model)
        earlier = first.setdefault(key, facts)
        if earlier is not facts:
            note = f"is the same server as {earlier.setting}: its load and its failures are counted twice"
            fix = "remove it, or correct the URL"
            yield wrong(f"engine {facts.engine.name} at {facts.url}", facts.setting, Problem(note, fix))


def _different_lengths(model: ModelSettings, engines: Sequence[EngineFacts]) -> Iterator[Finding]:
    lengths: dict[int, list[str]] = defaultdict(list)
    for facts in engines:
        length = facts.engine.max_model_len or facts.max_model_len
        if length is not None:
            lengths[length].append(_name(facts))
    if len(lengths) > 1:
        parts = (f"{length} ({', '.join(sorted(set(names)))})" for length, names in sorted(lengths.items()))
        note = f"its engines have different context lengths: {', '.join(parts)}. Longer requests get only the larger"
        fix = "start them with the same --max-model-len, unless this is on purpose"
        yield wrong(f"model {model.name}", None, Problem(note, fix), "warning")


def _different_tasks(index: int, model: ModelSettings, by_model: dict[str, list[EngineFacts]]) -> Iterator[Finding]:
    what, own = f"model {model.name}", by_model[model.name]
    generating, pooling = _generating(own), _pooling(own)
    if generating and pooling:
        note = f"{_names(generating)} generates text, but {_names(pooling)} does not: requests fail by chance"
        problem = Problem(note, "give the engines that only embed a [[model]] of their own")
        yield _without_text(what, f"{pooling[0].table}.model", problem, pooling)
    if pooling and not generating and model.auto:
        problem = Problem('takes part in model = "auto", but its engines do not generate text', "remove it")
        yield _without_text(what, written(("model", index, "auto")), problem, pooling)
    if model.fallback is None:
        return
    fallback = by_model[model.fallback]
    place = written(("model", index, "fallback"))
    if generating and not pooling and _pooling(fallback) and not _generating(fallback):
        note = f"falls back on {model.fallback}, whose engines do not generate text"
        problem = Problem(note, "choose a model that does, or remove it")
        yield _without_text(what, place, problem, _pooling(fallback))
    if pooling and not generating and _generating(fallback) and not _embedding(fallback):
        note = f"falls back on {model.fallback}, whose engines have no embeddings"
        problem = Problem(note, "remove it: embeddings of different models cannot be compared")
        yield _without_text(what, place, problem, pooling)


def _without_text(what: str, setting: str, problem: Problem, pooling: Sequence[EngineFacts]) -> Finding:
    """An error only where each of the engines has embeddings: it does not generate text then.

    Otherwise a proxy may have answered the GET of a path for POST with its own 404.
    """
    if all(facts.embeds for facts in pooling):
        return wrong(what, setting, problem)
    seen = f"as far as it can be seen: GET {CHAT_PATH} gets 404 from {_names(pooling)}"
    return wrong(
        what, setting, Problem(f"{problem.note}; {seen}", f"{problem.fix}, unless a proxy answers so"), "warning"
    )


def _generating(engines: Sequence[EngineFacts]) -> list[EngineFacts]:
    return [facts for facts in engines if facts.generates]


def _pooling(engines: Sequence[EngineFacts]) -> list[EngineFacts]:
    return [facts for facts in engines if facts.generates is False]


def _embedding(engines: Sequence[EngineFacts]) -> list[EngineFacts]:
    return [facts for facts in engines if facts.embeds]


def _name(facts: EngineFacts) -> str:
    """Replicas of an engine are told apart by their URL."""
    return facts.engine.name if facts.engine.url is not None else facts.url


def _names(engines: Sequence[EngineFacts]) -> str:
    return ", ".join(_name(facts) for facts in engines)
