"""The settings of the watchdog, which the router's command line passes in JSON."""

import msgspec

from engines.watchdog.decision import WatchPolicy


class WatchdogSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`[watchdog]` of the configuration; times in seconds, `max_temperature` in degrees Celsius.

    `drain_timeout`: how long an engine that is to be restarted may take to become idle. `continued_models`: those whose
    streams go on at other engines then. The rest: see WatchPolicy.
    """

    enabled: bool = True
    interval: float = 5.0
    degraded_below: float = 0.5
    degraded_for: float = 60.0
    cooldown: float = 600.0
    max_restarts: int = 2
    restart_after: float | None = None
    drain_timeout: float = 600.0
    max_temperature: float = 85.0
    continued_models: frozenset[str] = frozenset()

    @property
    def policy(self) -> WatchPolicy:
        return WatchPolicy(
            degraded_below=self.degraded_below,
            recovered_above=min(1.0, self.degraded_below * 1.4),
            degraded_for=self.degraded_for,
            cooldown=self.cooldown,
            max_restarts=self.max_restarts,
            restart_after=self.restart_after,
        )
