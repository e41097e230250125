"""Rules between the shares of a model's engines."""

from collections.abc import Iterator, Sequence

from router.core.routing.traffic_share import WHOLE
from router.settings.mistakes import Mistake, Place
from router.settings.tables import EngineSettings


def broken_shares(engines: Sequence[EngineSettings]) -> Iterator[Mistake]:
    for index, engine in enumerate(engines):
        if engine.revision is not None and engine.share is None:
            message = "needs share: the engine must be chosen before the cache key is made"
            yield Mistake(("engine", index, "revision"), message, reads=(("engine", index, "share"),))
    for model in dict.fromkeys(engine.model for engine in engines):
        own = [(index, engine) for index, engine in enumerate(engines) if engine.model == model]
        shares = [engine.share for _, engine in own if engine.share is not None]
        if not shares:
            continue
        last: Place = ("engine", max(index for index, engine in own if engine.share is not None), "share")
        reads: tuple[Place, ...] = (("engine", None, "share"), ("engine", None, "model"))
        if sum(shares) > WHOLE:
            message = f"is too much: the shares of {model}'s engines add up to {sum(shares)}; {WHOLE} is all"
            yield Mistake(last, message, reads=reads)
        elif len(shares) == len(own) and sum(shares) < WHOLE:
            message = f"leaves {WHOLE - sum(shares)} to nobody; leave out the share of an engine that takes the rest"
            yield Mistake(last, message, reads=reads)
