"""Decides what is to be done about an engine, from what was observed."""

from typing import Final, Literal

import msgspec

from engines.watchdog.baseline import Baseline
from engines.watchdog.observation import Observation
from router.core.plural import pluralize

Action = Literal["keep", "drain", "drain and restart", "page"]
Reason = Literal["degraded", "stalled", "errors", "scheduled"]

MIN_OBSERVATIONS: Final = 3
"""Degraded observations in a row that there must be as well: time also passes while this process is suspended."""

MAX_ERROR_RATE: Final = 0.5
"""The share of internal errors above which an engine is degraded, however fast it is."""

_HOUR: Final = 3600.0


class WatchPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When something is done; times in seconds.

    - Degraded: work waits, and the throughput is below `degraded_below` of the engine's own baseline. It stays degraded
      until it is above `recovered_above`. If work waits only part of the time, both shares are of that part. Nothing is
      done at a moment when no work waits.
    - `degraded_for`: how long it must be degraded.
    - `cooldown`: the least time between two actions.
    - `max_restarts`: in an hour. After them, the engine is drained and a person is needed.
    - `restart_after`: a healthy engine is restarted after this time; None: never.
    """

    degraded_below: float = 0.5
    recovered_above: float = 0.7
    degraded_for: float = 60.0
    cooldown: float = 600.0
    max_restarts: int = 2
    restart_after: float | None = None


class Degraded(msgspec.Struct, frozen=True):
    """A row of degraded observations; `stalled`: in all of them, the engine computed nothing."""

    since: float
    observations: int
    stalled: bool


class WatchState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an engine from former observations; times as in the argument `now` of `decide`."""

    baseline: Baseline = Baseline()
    up_since: float | None = None
    degraded: Degraded | None = None
    acted_at: float | None = None
    restarts: tuple[float, ...] = ()


class Decision(msgspec.Struct, frozen=True):
    """What to do, and why: `reason` is a label, `text` is for a person. To keep the engine needs no reason."""

    action: Action
    reason: Reason | None = None
    text: str = ""


KEEP: Final = Decision("keep")


def decide(
    state: WatchState, seen: Observation, policy: WatchPolicy, now: float, *, others_available: bool
) -> tuple[WatchState, Decision]:
    """The next state, and what to do now.

    `now` in seconds of a monotonic clock. `others_available`: whether another engine of the model takes requests; if
    not, this one is not drained. An action counts as done, whatever comes of it.
    """
    state = _follow(state, seen, policy, now)
    found = _find_reason(state, seen, policy, now)
    if found is None or (state.acted_at is not None and now - state.acted_at < policy.cooldown):
        return state, KEEP
    reason, text = found
    restarts = tuple(at for at in state.restarts if now - at < _HOUR)
    may_restart = len(restarts) < policy.max_restarts
    if reason == "scheduled" and not (others_available and may_restart):
        return state, KEEP  # it can wait
    state = msgspec.structs.replace(state, acted_at=now, degraded=None, restarts=restarts)
    if not others_available:
        text += "; no other engine of the model is available, so it is not drained"
        return state, Decision("page", reason, text)
    if not may_restart:
        text += f"; it was restarted {pluralize(len(restarts), 'time')} in the last hour, and is not restarted again"
        return state, Decision("drain", reason, text)
    state = msgspec.structs.replace(state, restarts=(*restarts, now), up_since=now)
    return state, Decision("drain and restart", reason, text)


def _follow(state: WatchState, seen: Observation, policy: WatchPolicy, now: float) -> WatchState:
    up_since = now if state.up_since is None or seen.restarted else state.up_since
    state = msgspec.structs.replace(state, up_since=up_since)
    if seen.restarted or not seen.healthy:  # the supervisor restarts an engine that is not healthy
        return msgspec.structs.replace(state, baseline=state.baseline.without_recent(), degraded=None)
    if seen.generated is None:
        return state
    baseline = state.baseline.follow(seen)
    if _is_degraded(baseline, seen, policy, was_degraded=state.degraded is not None):
        row = state.degraded or Degraded(now, 0, stalled=True)
        stalled = row.stalled and not seen.generated and not seen.prefilled
        degraded = Degraded(row.since, row.observations + 1, stalled)
        return msgspec.structs.replace(state, baseline=baseline, degraded=degraded)
    if not seen.hot and not _fails(seen) and not baseline.is_below(policy.recovered_above):
        baseline = baseline.learn(seen)
    return msgspec.structs.replace(state, baseline=baseline, degraded=None)


def _is_degraded(baseline: Baseline, seen: Observation, policy: WatchPolicy, *, was_degraded: bool) -> bool:
    if seen.hot:
        return False
    below = policy.recovered_above if was_degraded else policy.degraded_below
    return baseline.is_below(below) or (bool(seen.waiting) and _fails(seen))


def _fails(seen: Observation) -> bool:
    return seen.error_rate is not None and seen.error_rate > MAX_ERROR_RATE


def _find_reason(state: WatchState, seen: Observation, policy: WatchPolicy, now: float) -> tuple[Reason, str] | None:
    row = state.degraded
    if (
        row is not None
        and seen.waiting
        and seen.generated is not None
        and row.observations >= MIN_OBSERVATIONS
        and now - row.since >= policy.degraded_for
    ):
        reason: Reason = "stalled" if row.stalled else "errors" if _fails(seen) else "degraded"
        return reason, _describe(state.baseline, seen, now - row.since)
    up_for = now - state.up_since if state.up_since is not None else 0.0
    if row is None and seen.healthy and policy.restart_after is not None and up_for >= policy.restart_after:
        return "scheduled", f"it has run for {up_for / _HOUR:.1f} h"
    return None


def _describe(baseline: Baseline, seen: Observation, seconds: float) -> str:
    recent, share = baseline.recent, baseline.share
    parts = []
    if recent is not None and share is not None:
        parts.append(f"{recent.generated:.0f} tokens/s, {share:.0%} of its baseline")
    parts.append(pluralize(round(seen.waiting or 0), "request waits", "requests wait"))
    figures = [
        ("KV cache {:.0%}", seen.kv_cache_usage),
        ("prefix hits {:.0%}", seen.prefix_cache_hit_rate),
        ("{:.1f} preemptions/s", seen.preemptions),
        ("errors {:.0%}", seen.error_rate),
        ("first token {:.1f} s", seen.time_to_first_token),
    ]
    parts += [text.format(value) for text, value in figures if value is not None]
    return f"degraded for {seconds:.0f} s: " + ", ".join(parts)
