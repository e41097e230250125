"""Rules of engines that share a GPU."""

import ipaddress
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

from router.settings.mistakes import Mistake, Place, hint
from router.settings.tables import EngineSettings, GpuSettings

_ALL_ENGINES: Place = ("engine", None, "name")


def broken_gpus(gpus: Sequence[GpuSettings], engines: Sequence[EngineSettings]) -> Iterator[Mistake]:
    by_name = {engine.name: (index, engine) for index, engine in enumerate(engines)}
    groups: dict[str, str] = {}
    for index, gpu in enumerate(gpus):
        place: Place = ("gpu", index)
        if len(gpu.engines) < 2:
            yield Mistake((*place, "engines"), "must have at least two engines, which take turns")
        if gpu.awake is not None and gpu.memory is not None:
            yield Mistake((*place, "awake"), "cannot be combined with memory", reads=((*place, "memory"),))
        for number, name in enumerate(gpu.engines):
            where: Place = (*place, "engines", number)
            if name not in by_name:
                yield Mistake(where, _no_engine(name, list(by_name)), reads=(_ALL_ENGINES,))
            elif name in groups:
                yield Mistake(where, f"is already an engine of {groups[name]!r}; an engine belongs to one GPU")
            else:
                groups[name] = gpu.name
                yield from _member(gpu, *by_name[name])


def _member(gpu: GpuSettings, index: int, engine: EngineSettings) -> Iterator[Mistake]:
    place: Place = ("engine", index)
    if engine.data_parallel > 1:
        yield Mistake((*place, "data_parallel"), f"must be 1: the engine takes turns at {gpu.name!r}")
    elif len(engine.addresses) != 1:
        yield Mistake((*place, "urls"), f"must be one url: the engine takes turns at {gpu.name!r}", of_value=False)
    yield from _sleep(gpu, place, engine)
    if gpu.memory is None:
        return
    if engine.gpu_memory is None:
        yield Mistake((*place, "gpu_memory"), f"is missing: {gpu.name!r} has `memory` that its engines share")
    elif engine.gpu_memory > gpu.memory:
        yield Mistake((*place, "gpu_memory"), f"is more than the memory of {gpu.name!r}")


def _sleep(gpu: GpuSettings, place: Place, engine: EngineSettings) -> Iterator[Mistake]:
    sleep: Place = (*place, "sleep")
    launch: Place = (*place, "launch")
    calls: tuple[Place, Place] = ((*place, "sleep_call"), (*place, "wake_call"))
    has_calls = engine.sleep_call is not None, engine.wake_call is not None
    if any(has_calls):
        if not all(has_calls):
            missing, given = calls if has_calls[1] else calls[::-1]
            yield Mistake(missing, "is missing: an engine needs both sleep_call and wake_call", reads=(given,))
        if engine.sleep is not None:
            yield Mistake(sleep, "cannot be combined with sleep_call and wake_call", reads=calls)
        if engine.launch is not None:
            message = 'is for engines that something else starts; set sleep to "vllm" or "process"'
            yield Mistake(calls[0], message, of_value=False, reads=(launch,))
    elif engine.launch is None:
        if engine.sleep is None:
            message = f'is missing: the engine takes turns at {gpu.name!r}; set "vllm", or sleep_call and wake_call'
            yield Mistake(sleep, message)
        elif engine.sleep == "process":
            yield Mistake(sleep, "needs [engine.launch]: `roundhouse up` stops and starts it", reads=(launch,))
    elif engine.sleep == "process":
        return
    elif engine.launch.placement == "ray":
        yield Mistake(sleep, 'must be "process" with placement = "ray"', reads=((*launch, "placement"),))
    elif not all(map(_is_local, engine.addresses)):
        message = "must be a loopback address: who reaches an engine that can sleep can also let it sleep"
        yield Mistake((*place, "url"), message, reads=(sleep,))


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _no_engine(name: str, engines: list[str]) -> str:
    similar = hint(name, engines)
    return f"is not an engine; did you mean {similar}?" if similar else "is not an engine"
