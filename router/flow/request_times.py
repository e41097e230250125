"""The parts of a request's time, by their names in the log, in Server-Timing and in the documentation."""

from typing import Final

from router.flow.exchange import Exchange, GenerationRecord, RequestOutcome

RequestTime = tuple[str, float]
"""The name of a part, and its milliseconds."""

_HUNDREDTHS: Final = [f".{number:02d}" for number in range(100)]


def milliseconds_text(milliseconds: float) -> str:
    """With two decimals. Formatting a float takes several times as long."""
    hundredths = int(100 * milliseconds + 0.5)
    return str(hundredths // 100) + _HUNDREDTHS[hundredths % 100]


def generation_times(exchange: Exchange, generation: GenerationRecord, now: float) -> list[RequestTime]:
    """Those of a request with a generation that are not 0. `now`: by time.perf_counter; the request's end, if it ended.

    A request that joined a generation has the times of that, which may have begun before the request.
    """
    lookup, queue, wait = exchange.lookup_seconds, generation.queue_seconds, generation.wait_seconds
    # Of a client that leaves while the generation waits, the line is written before that ends.
    if generation.queued_since is not None:
        queue += max(0.0, now - generation.queued_since)
    if generation.waiting_since is not None:
        wait += max(0.0, now - generation.waiting_since)
    ended_at = generation.ended_at
    if ended_at is not None and ended_at < now:  # a client that reads slowly is not the engine's time
        now = ended_at
    times = []
    if lookup:
        times.append(("lookup_ms", 1000 * lookup))
    if wait:
        times.append(("wait_ms", 1000 * wait))
    if queue:
        times.append(("queue_ms", 1000 * queue))
    if generation.attempts:
        times += _engine_times(generation, now)
    return times


def _engine_times(generation: GenerationRecord, now: float) -> list[RequestTime]:
    connect, engine = 0.0, 0.0
    first_token, first_token_at = None, generation.first_token_at
    for attempt in generation.attempts:
        if attempt.connect_seconds is not None:
            connect += attempt.connect_seconds
        engine += attempt.seconds(now)
        # The attempt that had the first token: those before failed without one, those after continue its stream.
        if first_token_at is not None and attempt.sent_at <= first_token_at:
            first_token = first_token_at - attempt.sent_at
    times = []
    if connect:
        times.append(("connect_ms", 1000 * connect))
    if first_token is not None and generation.origin.stream:
        times.append(("first_token_ms", 1000 * first_token))
    if engine:
        times.append(("engine_ms", 1000 * engine))
    return times


def tried_engines(generation: GenerationRecord, outcome: RequestOutcome) -> str:
    """`ENGINE:RESULT` of each attempt, those that failed with their milliseconds; empty if the first one succeeded."""
    attempts = generation.attempts
    if not attempts or (len(attempts) == 1 and attempts[0].failed_at is None):
        return ""
    last = generation.error_reason or ("left" if outcome == "left" else "ok")
    return ",".join([
        f"{each.engine}:{last}" if each.failed_at is None
        else f"{each.engine}:{each.error_reason}:{1000 * (each.failed_at - each.sent_at):.0f}"
        for each in attempts
    ])  # fmt: skip
