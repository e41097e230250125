"""The catalog that the settings describe."""

from router.settings import Settings
from router.upstream.catalog import Catalog, Engine, Model


def build_catalog(settings: Settings, old: tuple[Settings, Catalog] | None = None) -> Catalog:
    """The configured models and engines; each URL of an engine with several becomes an engine of its own.

    An engine whose settings are as in `old` is the same object, so its in-flight count continues. One with the same
    name and URL but other settings inherits the state of the old one.
    """
    models = [Model(m.name, m.revision, tuple(m.aliases), tuple(m.auto), m.fallback) for m in settings.model]
    engines = []
    for engine in settings.engine:
        many = len(engine.addresses) > 1
        unchanged = old is not None and engine in old[0].engine and settings.breaker == old[0].breaker
        for number, url in enumerate(engine.addresses, 1):
            name = f"{engine.name}.{number}" if many else engine.name
            previous = old[1].engines.get(name) if old is not None else None
            if previous is not None and unchanged:
                engines.append(previous)
                continue
            created = Engine(
                name=name,
                model=engine.model,
                task=engine.task,
                url=url,
                served_model=engine.served_model or engine.model,
                max_model_len=engine.max_model_len,
                family=engine.name,
                has_draft=engine.launch is not None and engine.launch.speculation_method is not None,
                max_in_flight=share_of_worker(engine.max_in_flight, settings.router.workers),
            )
            if previous is not None and previous.url == url:
                created.inherit_state(previous)
            engines.append(created)
    return Catalog(models, engines)


def share_of_worker(max_in_flight: int | None, workers: int) -> int | None:
    """How many of the requests that an engine may have at a time are one worker process' own."""
    # Workers do not count together, so each enforces its share; at least one, or no worker could use the engine.
    return None if max_in_flight is None else max(1, max_in_flight // workers)
