"""The tests of the alerts, for `promtool test rules`: that each fires, with its texts, and that it stays silent.

Series are in promtool's notation: `0+6x20` is 0, then 20 times 6 more; `_x5` is absent five times. One value a minute
or, where states change faster, every 15 seconds.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

Firing = tuple[dict[str, str], str, str]
"""An alert's labels without the severity, its summary and its description."""

_R = 'instance="router:8080", job="roundhouse"'
_INSTANCE: Final = {"instance": "router:8080", "job": "roundhouse"}
_HIT_LABELS: Final = f'model="llama", cache="HIT", {_R}'
_REQUEST_LABELS: Final = f'tenant="acme", model="llama", engine="chat", task="chat", {_R}'
_ASLEEP: Final = f'roundhouse_engine_asleep{{engine="chat", {_R}}}'
_WAKES: Final = f'llm_engine_wakes_total{{model="llama", result="%s", {_R}}}'
_WRITES: Final = f'llm_cache_writes_total{{result="%s", {_R}}}'
_UP: Final = f'roundhouse_engine_up{{engine="chat", {_R}}}'
_RESTARTS: Final = f'roundhouse_watchdog_restarts_total{{engine="chat", reason="stalled", {_R}}}'
_BREAKER: Final = f'roundhouse_breaker_state{{engine="chat", {_R}}}'
_REJECTED: Final = f'llm_requests_rejected_total{{reason="queue_full", tenant="beta", {_R}}}'
_PROBLEM: Final = f'roundhouse_problem{{severity="critical", kind="%s", subject="%s", problem="%s", {_R}}}'
_DAMAGED: Final = f"llm_cache_entries_damaged_total{{{_R}}}"

_BATCHES: Final = f'roundhouse_batches_open{{state="%s", {_R}}}'
_BATCH_LINES: Final = f'roundhouse_batch_lines_total{{result="generated", {_R}}}'


class AlertTest(NamedTuple):
    """What `alert` does at the time `at` after these series; `fires` is empty if it stays silent."""

    alert: str
    case: str
    series: Mapping[str, str]
    at: str
    fires: tuple[Firing, ...] = ()
    interval: str = "1m"
    """Between the values of the series; the rules are evaluated as often."""
    takes_a_week: bool = False
    """The rules are then evaluated every 30 minutes."""


FirstTokens = tuple[int, int, int, int]
"""Requests per minute whose first token takes up to 0.1, 0.25, 1 and 5 s."""

_USUAL: Final = "more than twice the time of a week ago, or than 2 s where it is unknown."
_WEEK: Final = 7 * 24 * 60  # minutes


def _first_tokens(now: FirstTokens, last_week: FirstTokens | None = None) -> dict[str, str]:
    """The series of 20 minutes; with `last_week`, of a week before and one hour."""
    bucket = f"llm_time_to_first_token_seconds_bucket{{{_HIT_LABELS}, le="
    series = {}
    for number, bound in enumerate(("0.1", "0.25", "1", "5", "+Inf"), 1):
        series[f'{bucket}"{bound}"}}'] = _counter(now, last_week, number)
    series[f'llm_requests_total{{{_REQUEST_LABELS}, status="200"}}'] = _counter(now, last_week, 4)
    return series


def _counter(now: FirstTokens, last_week: FirstTokens | None, number: int) -> str:
    """Counts the requests of the first `number` times."""
    if last_week is None:
        return f"0+{sum(now[:number])}x20"
    before = sum(last_week[:number])
    return f"0+{before}x{_WEEK} {before * _WEEK}+{sum(now[:number])}x60"


def _statuses(minutes: int = 20, **per_minute: int) -> dict[str, str]:
    return {
        f'llm_requests_total{{{_REQUEST_LABELS}, status="{status.removeprefix("s")}"}}': f"0+{count}x{minutes}"
        for status, count in per_minute.items()
    }


def _lookups(minutes: int = 90, **per_minute: int) -> dict[str, str]:
    return {
        f'llm_cache_requests_total{{tenant="acme", model="llama", result="{result}", {_R}}}': f"0+{count}x{minutes}"
        for result, count in per_minute.items()
    }


def _batches(lines: str, **states: str) -> dict[str, str]:
    return {_BATCHES % state: values for state, values in states.items()} | {_BATCH_LINES: lines}


_ACCEPTANCE: Final = f'vllm_spec_acceptance_rate{{engine="chat", {_R}}}'

ALERT_TESTS: Final = (
    AlertTest(
        "TimeToFirstTokenHigh", "a new model takes seconds", _first_tokens((0, 0, 90, 10)), "15m",
        (({"model": "llama"}, "The time to first token of llama is high",
          f"99 % of the requests get their first token within 4.6s; {_USUAL}"),),
    ),
    AlertTest("TimeToFirstTokenHigh", "a new model takes a second", _first_tokens((0, 0, 100, 0)), "15m"),
    AlertTest("TimeToFirstTokenHigh", "only the slowest take longer", _first_tokens((900, 88, 7, 5)), "15m"),
    AlertTest("TimeToFirstTokenHigh", "a slow request a minute is too few", _first_tokens((0, 0, 0, 1)), "15m"),
    AlertTest("TimeToFirstTokenHigh", "no traffic", _first_tokens((0, 0, 0, 0)), "15m"),
    AlertTest("TimeToFirstTokenHigh", "slow for less than five minutes", _first_tokens((0, 0, 0, 60)), "4m"),
    AlertTest(
        "TimeToFirstTokenHigh", "three times as slow as a week ago", _first_tokens((0, 0, 100, 0), (0, 100, 0, 0)),
        "7d1h",
        (({"model": "llama"}, "The time to first token of llama is high",
          f"99 % of the requests get their first token within 992.5ms; {_USUAL}"),),
        takes_a_week=True,
    ),
    AlertTest(
        "TimeToFirstTokenHigh", "seconds, as a week ago", _first_tokens((0, 0, 0, 60), (0, 0, 0, 60)), "7d1h",
        takes_a_week=True,
    ),
    AlertTest(
        "KVCacheNearlyFull", "95 % for minutes", {f'vllm_kv_cache_usage{{engine="chat", {_R}}}': "0.95x10"}, "5m",
        (({"engine": "chat"}, "The KV cache of chat is nearly full",
          "95% of the KV cache are in use; more than 90 %."),),
    ),
    AlertTest("KVCacheNearlyFull", "exactly 90 %", {f'vllm_kv_cache_usage{{engine="chat", {_R}}}': "0.9x10"}, "5m"),
    AlertTest(
        "KVCacheNearlyFull", "a short peak", {f'vllm_kv_cache_usage{{engine="chat", {_R}}}': "0.5 0.95 0.5x8"}, "1m"
    ),
    AlertTest("KVCacheNearlyFull", "the engine does not report it", {_UP: "1x10"}, "5m"),
    AlertTest(
        "RequestsRejected", "six a minute", {_REJECTED: "0+6x20"},
        "10m",
        (({"reason": "queue_full", "tenant": "beta"}, "Requests of beta are rejected: queue_full",
          "6.0 requests a minute of tenant beta are rejected with queue_full; more than 5."),),
    ),
    AlertTest(
        # A value a minute: at whole minutes, Prometheus computes a little more than 5.
        "RequestsRejected", "five a minute", {_REJECTED: " ".join(f"{5 * minute} _x3" for minute in range(11))}, "10m",
        interval="15s",
    ),
    AlertTest("RequestsRejected", "the router was restarted: its counter starts at 0 again",
              {_REJECTED: "1000x5 0x15"}, "10m"),
    AlertTest(
        "DraftAcceptanceLow", "12 % with traffic", {_ACCEPTANCE: "0.12x60"} | _statuses(60, s200=60), "40m",
        (({"engine": "chat"}, "The draft of chat is rarely accepted",
          "12% of the draft's tokens are accepted; less than 20 %."),),
    ),
    AlertTest("DraftAcceptanceLow", "12 % for a few minutes", {_ACCEPTANCE: "0.12x60"} | _statuses(60, s200=60), "10m"),
    AlertTest("DraftAcceptanceLow", "25 % with traffic", {_ACCEPTANCE: "0.25x60"} | _statuses(60, s200=60), "40m"),
    AlertTest("DraftAcceptanceLow", "12 % without traffic", {_ACCEPTANCE: "0.12x60"} | _statuses(60, s200=0), "40m"),
    AlertTest("DraftAcceptanceLow", "an engine without a draft", _statuses(60, s200=60), "40m"),
    AlertTest(
        "CacheHitRatioLow", "one hit in ten look-ups for an hour", _lookups(hit=10, miss=90), "80m",
        (({"model": "llama"}, "The hit ratio of llama is low",
          "10% of the requests of the last 30 minutes were hits; less than 20 %."),),
    ),
    AlertTest(
        "CacheHitRatioLow", "misses only, without a series for hits", _lookups(miss=90), "80m",
        (({"model": "llama"}, "The hit ratio of llama is low",
          "0% of the requests of the last 30 minutes were hits; less than 20 %."),),
    ),
    AlertTest("CacheHitRatioLow", "a quarter of the look-ups are hits", _lookups(hit=25, miss=75), "80m"),
    AlertTest("CacheHitRatioLow", "the cache is cold after the start", _lookups(miss=90), "25m"),
    AlertTest("CacheHitRatioLow", "bypasses only", _lookups(bypass=100), "80m"),
    AlertTest("CacheHitRatioLow", "no traffic", _lookups(hit=0, miss=0), "80m"),
    AlertTest("CacheHitRatioLow", "a miss a minute is too few to judge", _lookups(miss=1), "80m"),
    AlertTest(
        "EngineDown", "down for two minutes", {_UP: "1x2 0x10"}, "6m",
        (({"engine": "chat"}, "The engine chat is down",
          ("A router has not reached chat for a minute (roundhouse_engine_up is 0). "
          "`roundhouse status` says since when and why.")),),
    ),
    AlertTest(
        "EngineDown", "down, and the router knows why",
        {
            _UP: "1x2 0x10", _PROBLEM % ("engine", "chat", "engine chat is down: connection refused"): "_x3 1x10",
            _PROBLEM % ("engine", "code", "engine code is down: status 500"): "1x12",
        },
        "6m",
        (({"engine": "chat"}, "The engine chat is down",
          ("A router has not reached chat for a minute (roundhouse_engine_up is 0). "
          "The router says: engine chat is down: connection refused. `roundhouse status` says since when and why.")),),
    ),
    AlertTest(
        "EngineDown", "down for another reason than before",
        {
            _UP: "1x2 0x10", _PROBLEM % ("engine", "chat", "engine chat is down: connection refused"): "_x3 1x2 stale",
            _PROBLEM % ("engine", "chat", "engine chat is down: status 500"): "_x6 1x10",
        },
        "6m",
        (({"engine": "chat"}, "The engine chat is down",
          ("A router has not reached chat for a minute (roundhouse_engine_up is 0). "
          "The router says: engine chat is down: status 500. `roundhouse status` says since when and why.")),),
    ),
    AlertTest(
        "EngineDown", "down, and the worker that answers now does not say why",
        {
            _UP: "1x2 0x20", _PROBLEM % ("engine", "chat", "engine chat is down: connection refused"): "1x15 stale",
            _PROBLEM % ("engine", "chat", "engine chat is down: status 500"): "_x16 1 stale",
        },
        "4m30s",
        (({"engine": "chat"}, "The engine chat is down",
          ("A router has not reached chat for a minute (roundhouse_engine_up is 0). "
          "The router says: engine chat is down: status 500. `roundhouse status` says since when and why.")),),
        "15s",
    ),
    AlertTest("EngineDown", "up", {_UP: "1x10"}, "6m"),
    AlertTest("EngineDown", "unknown for some seconds after the start", {_UP: "0 0 1x20"}, "15s", interval="15s"),
    AlertTest("EngineDown", "removed from the configuration", {_UP: "0 _x20"}, "10m"),
    AlertTest("EngineDown", "started by demand, and not needed", {_UP: "0x10", _ASLEEP: "1x10"}, "6m"),
    AlertTest(
        "EngineDown", "up for another router",
        {_UP: "0x10", _ASLEEP: "1x10", _ASLEEP.replace("router:", "other:"): "0x10"}, "6m",
        (({"engine": "chat"}, "The engine chat is down",
          ("A router has not reached chat for a minute (roundhouse_engine_up is 0). "
          "`roundhouse status` says since when and why.")),),
    ),
    AlertTest(
        "EngineDoesNotStart", "a request has waited in vain", {_WAKES % "timeout": "0x5 1x20"}, "6m",
        (({"model": "llama"}, "No engine of llama starts",
          ("Requests of the last 10 minutes that waited in vain for an engine to start: 1. "
          "`roundhouse status` says the state of its engines.")),),
    ),
    AlertTest(
        "EngineDoesNotStart", "its model has no engine",
        {
            _WAKES % "timeout": "0x5 1x20",
            _PROBLEM % ("model", "llama", "llama has no engine: only hits are served"): "1x20",
        },
        "6m",
        (({"model": "llama"}, "No engine of llama starts",
          ("Requests of the last 10 minutes that waited in vain for an engine to start: 1. "
          "The router says: llama has no engine: only hits are served. "
          "`roundhouse status` says the state of its engines.")),),
    ),
    AlertTest("EngineDoesNotStart", "engines start", {_WAKES % "started": "0+1x20", _WAKES % "timeout": "0x20"}, "10m"),
    AlertTest("EngineDoesNotStart", "a quarter of an hour ago", {_WAKES % "timeout": "0x5 1x30"}, "20m"),
    AlertTest(
        "BreakerOpen", "open, half-open after 10 s, open again", {_BREAKER: "2 1 2 2 1 2 1 2 2 1 2 2"}, "2m30s",
        (({"engine": "chat"}, "The breaker of chat is open",
          ("The breaker has not closed for a minute (its state is 2; 1 is half-open, 2 is open). "
          "`roundhouse status` says what else is wrong.")),),
        "15s",
    ),
    AlertTest(
        "BreakerOpen", "open, and the router says what follows",
        {_BREAKER: "2 1 2 2 1 2 1 2 2 1 2 2", _PROBLEM % ("engine", "chat", "engine chat gets no requests"): "1x11"},
        "2m30s",
        (({"engine": "chat"}, "The breaker of chat is open",
          ("The breaker has not closed for a minute (its state is 2; 1 is half-open, 2 is open). "
          "The router says: engine chat gets no requests. `roundhouse status` says what else is wrong.")),),
        "15s",
    ),
    AlertTest(
        "BreakerOpen", "half-open now, and the router says that only",
        {
            _BREAKER: "2 1 2 2 1 2 1 2 2 2 1",
            _PROBLEM % ("engine", "chat", "engine chat gets no requests"): "1x9 stale",
            _PROBLEM % ("engine", "chat", "engine chat gets one request to try it"): "_x10 1",
        },
        "2m30s",
        (({"engine": "chat"}, "The breaker of chat is open",
          ("The breaker has not closed for a minute (its state is 1; 1 is half-open, 2 is open). "
          "The router says: engine chat gets one request to try it. `roundhouse status` says what else is wrong.")),),
        "15s",
    ),
    AlertTest("BreakerOpen", "open for 30 s", {_BREAKER: "0 2 2 0x20"}, "1m30s", interval="15s"),
    AlertTest("BreakerOpen", "half-open without traffic", {_BREAKER: "0 2 1x40"}, "5m", interval="15s"),
    AlertTest("BreakerOpen", "opens and closes again and again", {_BREAKER: "2 0 2 0 2 0 2 0 2 0 2 0 2"}, "3m",
              interval="15s"),
    AlertTest(
        "RedisDown", "down for two minutes", {f"roundhouse_redis_up{{{_R}}}": "1x2 0x10"}, "6m",
        ((_INSTANCE, "router:8080 does not reach Redis",
          ("Redis has been down for a minute (roundhouse_redis_up is 0): every request is a bypass. "
          "`roundhouse status` says since when.")),),
    ),
    AlertTest(
        "RedisDown", "down, and full for another router",
        {
            f"roundhouse_redis_up{{{_R}}}": "1x2 0x10", _PROBLEM % ("redis", "", "Redis is down"): "1x12",
            (_PROBLEM % ("redis", "", "Redis is full")).replace("router:", "other:"): "1x12",
            (_PROBLEM % ("redis", "", "Redis cannot save")).replace('"roundhouse"', '"staging"'): "1x12",
        },
        "6m",
        ((_INSTANCE, "router:8080 does not reach Redis",
          ("Redis has been down for a minute (roundhouse_redis_up is 0): every request is a bypass. "
          "The router says: Redis is down. `roundhouse status` says since when.")),),
    ),
    AlertTest("RedisDown", "up", {f"roundhouse_redis_up{{{_R}}}": "1x10"}, "6m"),
    AlertTest("RedisDown", "a failover of 30 s", {f"roundhouse_redis_up{{{_R}}}": "1 0 0 1x20"}, "30s", interval="15s"),
    AlertTest(
        "CacheWritesFailing", "Redis is full",
        {_WRITES % "stored": "0+10x10 100x20", _WRITES % "failed": "0x10 0+10x20"}, "20m",
        (({}, "Redis refuses entries",
          ("Redis has refused 100% of the responses of the last 5 minutes; more than 50 %. "
          "`roundhouse status` says why, as in: Redis is full.")),),
    ),
    AlertTest(
        "CacheWritesFailing", "two routers say why",
        {
            _WRITES % "failed": "0+10x20", _PROBLEM % ("redis", "", "Redis is full: nothing is stored"): "1x20",
            (_PROBLEM % ("redis", "", "Redis is full: nothing is stored")).replace("router:", "other:"): "1x20",
        },
        "10m",
        (({}, "Redis refuses entries",
          ("Redis has refused 100% of the responses of the last 5 minutes; more than 50 %. The router says: "
          "Redis is full: nothing is stored. `roundhouse status` says why, as in: Redis is full.")),),
    ),
    AlertTest("CacheWritesFailing", "Redis is full from the start", {_WRITES % "failed": "0+10x20"}, "10m",
        (({}, "Redis refuses entries",
          ("Redis has refused 100% of the responses of the last 5 minutes; more than 50 %. "
          "`roundhouse status` says why, as in: Redis is full.")),),
    ),
    AlertTest(
        "CacheWritesFailing", "one in ten fails", {_WRITES % "stored": "0+90x20", _WRITES % "failed": "0+10x20"}, "10m"
    ),
    AlertTest(
        "CacheWritesFailing", "Redis is down", {_WRITES % "stored": "100x20", _WRITES % "dropped": "0+10x20"}, "10m"
    ),
    AlertTest("CacheWritesFailing", "no traffic", {_WRITES % "stored": "9x20", _WRITES % "failed": "9x20"}, "10m"),
    AlertTest(
        "EngineRestartLoop", "the first two restarts within an hour", {_UP: "1x150", _RESTARTS: "_x79 1x20 2x60"},
        "110m",
        (({"engine": "chat"}, "chat is restarted again and again",
          "The watchdog has restarted chat 2 times in the last hour."),),
    ),
    AlertTest(
        "EngineRestartLoop", "two more restarts within an hour, seen by two routers",
        {_UP: "1x150", _RESTARTS: "5x79 6x20 7x60", _RESTARTS.replace("router:", "router-2:"): "5x79 6x20 7x60"},
        "110m",
        (({"engine": "chat"}, "chat is restarted again and again",
          "The watchdog has restarted chat 2 times in the last hour."),),
    ),
    AlertTest("EngineRestartLoop", "one restart", {_UP: "1x150", _RESTARTS: "_x79 1x80"}, "110m"),
    AlertTest("EngineRestartLoop", "restarts of long ago", {_UP: "1x150", _RESTARTS: "7x150"}, "110m"),
    AlertTest("EngineRestartLoop", "restarts before the router was started", {_UP: "1x20", _RESTARTS: "7x20"}, "10m"),
    AlertTest("EngineRestartLoop", "roundhouse up was started again", {_UP: "1x150", _RESTARTS: "7x79 0x80"}, "110m"),
    AlertTest(
        "ServerErrorsHigh", "one request in ten ends with a 502", _statuses(s200=90, s502=10), "10m",
        (({"model": "llama"}, "Requests for llama fail",
          ("10% of the requests ended with a 5xx or broke off; more than 5 %. "
          "`roundhouse status` says what else is wrong.")),),
    ),
    AlertTest(
        "ServerErrorsHigh", "all streams break off", _statuses(sbroken=60), "10m",
        (({"model": "llama"}, "Requests for llama fail",
          ("100% of the requests ended with a 5xx or broke off; more than 5 %. "
          "`roundhouse status` says what else is wrong.")),),
    ),
    AlertTest(
        "ServerErrorsHigh", "every engine is drained",
        _statuses(s503=60) | {_PROBLEM % ("model", "llama", "every engine of llama is drained"): "1x20"}, "10m",
        (({"model": "llama"}, "Requests for llama fail",
          ("100% of the requests ended with a 5xx or broke off; more than 5 %. "
          "The router says: every engine of llama is drained. `roundhouse status` says what else is wrong.")),),
    ),
    AlertTest("ServerErrorsHigh", "all requests fail for a minute", _statuses(s502=60), "2m"),
    AlertTest("ServerErrorsHigh", "clients send invalid requests", _statuses(s200=50, s400=50), "10m"),
    AlertTest("ServerErrorsHigh", "four errors in a hundred", _statuses(s200=96, s502=4), "10m"),
    AlertTest("ServerErrorsHigh", "an error a minute is too few to judge", _statuses(s502=1), "10m"),
    AlertTest("ServerErrorsHigh", "no traffic", _statuses(s200=0, s502=0), "10m"),
    AlertTest(
        "CacheEntriesDamaged", "one entry", {_DAMAGED: "0x20 1x5"}, "21m",
        ((_INSTANCE, "router:8080 finds damaged entries",
          "Damaged entries that were found and deleted in the last 15 minutes: 1."),),
    ),
    AlertTest("CacheEntriesDamaged", "none", {_DAMAGED: "0x40"}, "30m"),
    AlertTest("CacheEntriesDamaged", "one an hour ago", {_DAMAGED: "0x5 1x90"}, "65m"),
    AlertTest(
        "BatchesStandStill", "two routers see one that waits and one that runs, and no line ends",
        _batches(waiting="1x90", running="1x90", lines="50x90")
        | {
            name.replace("router:", "router-2:"): values
            for name, values in _batches(waiting="1x90", running="1x90", lines="0x90").items()
        },
        "80m",
        (({}, "No batch makes progress",
          ("2 batches are open, neither paused, nor outside of batch.hours, nor over a budget, and no "
          "line has ended for an hour. The dashboard says what each waits for.")),),
    ),
    AlertTest(
        "BatchesStandStill", "without a sample of lines", {_BATCHES % "running": "1x90"}, "70m",
        (({}, "No batch makes progress",
          ("1 batches are open, neither paused, nor outside of batch.hours, nor over a budget, and no "
          "line has ended for an hour. The dashboard says what each waits for.")),),
    ),
    AlertTest("BatchesStandStill", "for half an hour", _batches(waiting="1x90", lines="0+1x40 40x50"), "70m"),
    AlertTest(
        "BatchesStandStill", "a line every ten minutes",
        _batches(running="1x90", lines=" ".join(f"{number}x9" for number in range(9))), "80m",
    ),
    AlertTest("BatchesStandStill", "paused", _batches(paused="1x90", waiting="0x90", lines="50x90"), "80m"),
    AlertTest("BatchesStandStill", "outside of the hours", _batches(outside_hours="1x90", lines="50x90"), "80m"),
    AlertTest("BatchesStandStill", "over a budget until tomorrow", _batches(limited="1x90", lines="50x90"), "80m"),
    AlertTest("BatchesStandStill", "no batch", _batches(running="0x90", waiting="0x90", lines="50x90"), "80m"),
    AlertTest(
        "RouterDown", "not reachable for two minutes", {f"up{{{_R}}}": "1x2 0x10"}, "6m",
        ((_INSTANCE, "The router router:8080 is down",
          "Prometheus has not reached router:8080 for a minute (up is 0)."),),
    ),
    AlertTest("RouterDown", "one scrape fails", {f"up{{{_R}}}": "1 0 1x20"}, "15s", interval="15s"),
    AlertTest("RouterDown", "another job is down", {'up{instance="node:9100", job="node"}': "0x10"}, "6m"),
)  # fmt: skip
