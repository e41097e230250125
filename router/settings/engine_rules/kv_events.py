"""Rules for where KV events of engines are read."""

from collections.abc import Iterator, Sequence

from router.settings.mistakes import Mistake, Place
from router.settings.replicas import HOST, Replica, is_bound_here, kv_endpoint, replicas
from router.settings.tables import EngineSettings


def broken_kv_events(engines: Sequence[EngineSettings], workers: int) -> Iterator[Mistake]:
    mistakes = list(_broken_endpoints(engines, workers))
    yield from mistakes or _shared_endpoints(engines)


def _shared_endpoints(engines: Sequence[EngineSettings]) -> Iterator[Mistake]:
    """Each publisher numbers its batches from 0, and no batch names its publisher."""
    publishers: dict[str, Replica] = {}
    for index, engine in enumerate(engines):
        for replica in replicas(engine) if engine.kv_events is not None else ():
            endpoint = kv_endpoint(str(engine.kv_events), replica)
            first = publishers.setdefault(endpoint, replica)
            if first.id != replica.id:
                names = f"{first.name} and {replica.name}"
                message = f"is where {names} publish ({endpoint}); each needs an endpoint of its own"
                yield Mistake(("engine", index, "kv_events"), message)


def _broken_endpoints(engines: Sequence[EngineSettings], workers: int) -> Iterator[Mistake]:
    for index, engine in enumerate(engines):
        place: Place = ("engine", index)
        events: Place = (*place, "kv_events")
        if engine.kv_events is None:
            if engine.kv_events_replay is not None:
                yield Mistake((*place, "kv_events_replay"), "needs kv_events; set it, too", reads=(events,))
            continue
        if is_bound_here(engine.kv_events) and workers > 1:
            message = (
                "makes the router bind, which only one process can; start the engine with a `*` in its own endpoint, "
                "and write its host here"
            )
            yield Mistake(events, message, reads=(("router", "workers"),))
        if len(engine.addresses) > 1:
            for name, endpoint in (("kv_events", engine.kv_events), ("kv_events_replay", engine.kv_events_replay)):
                if endpoint is not None and HOST not in endpoint:
                    message = f"must have {HOST} in place of the host, since each of the urls publishes its own events"
                    yield Mistake((*place, name), message, reads=((*place, "urls"),))
        for name, endpoint in (("kv_events", engine.kv_events), ("kv_events_replay", engine.kv_events_replay)):
            if engine.data_parallel > 1 and endpoint is not None and endpoint.startswith("ipc:"):
                message = "must be of tcp: vLLM adds the rank to the port, and does not start with ipc"
                yield Mistake((*place, name), message, reads=((*place, "data_parallel"),))
        if engine.kv_events_replay is not None and is_bound_here(engine.kv_events_replay):
            yield Mistake((*place, "kv_events_replay"), "must have the engine's host: vLLM always binds it")
