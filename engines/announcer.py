"""Announces engines to the routers through Redis, see router.shared.engines.announcements."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec.structs import replace
from redis.exceptions import RedisClusterException, RedisError

from router.shared.connection.redis import open_client
from router.shared.engines.announcements import (
    LEASE,
    RENEWAL_INTERVAL,
    AnnouncedEngine,
    ModelRevision,
    held_by_others,
    write_command,
)

_TIMEOUT: Final = 5.0  # seconds for a command; a connection that hangs must not cost the lease


class AnnounceError(Exception):
    """Redis did not take the announcement; the message gives the reason."""


class _Redis(Protocol):
    async def execute_command(self, *command: Any) -> Any: ...
    async def aclose(self) -> None: ...


class Announcer:
    """Announces the engines of one launcher, and renews their leases.

    - `announce` and `withdraw` take effect at once if Redis is up, else with the next renewal.
    - `change` keeps what a take-over that is under way sets.
    - `take_over` takes effect at all routers in one step, or not at all.
    - An engine that another launcher announces is not overwritten; `report` gets a line about it, once.
    """

    def __init__(self, redis: _Redis, owner: str, report: Callable[[str], None]) -> None:
        """`owner`: see launcher_id. `report` gets a line for a person about each problem."""
        self._redis = redis
        self._report = report
        self._owner = owner
        self._engines: dict[str, AnnouncedEngine] = {}
        self._revisions: dict[str, ModelRevision] = {}
        self._reported: str | None = None  # the present problem, which is reported once
        # Two connections have no order: a renewal that was encoded before a take-over could arrive after it.
        self._write_lock = asyncio.Lock()

    @classmethod
    def connect(cls, url: str, owner: str, report: Callable[[str], None]) -> "Announcer":
        """Raises RedisUrlError."""
        return cls(open_client(url, timeout=_TIMEOUT), owner, report)

    def current(self, name: str) -> AnnouncedEngine | None:
        return self._engines.get(name)

    async def announce(self, *engines: AnnouncedEngine, revisions: Mapping[str, ModelRevision] | None = None) -> None:
        """Adds these engines, or replaces those with the same names."""
        async with self._write_lock:
            self._engines |= {engine.name: engine for engine in engines}
            self._revisions |= revisions or {}
            await self._try_write(engines)

    async def change(self, name: str, **changes: Any) -> None:
        """Announces an engine with these fields changed, if it is announced and does not have them already."""
        async with self._write_lock:
            current = self._engines.get(name)
            if current is not None and (new := replace(current, **changes)) != current:
                self._engines[name] = new
                await self._try_write([new])

    async def take_over(self, engines: Sequence[AnnouncedEngine], revisions: Mapping[str, ModelRevision]) -> None:
        """As `announce`. Raises AnnounceError; then nothing is changed, at the latest after the next renewal."""
        async with self._write_lock:
            try:
                held = await self._write(write_command(self._owner, engines, revisions=revisions))
            except AnnounceError:
                # Redis may have executed it nevertheless. Renewals restore the engines, and so the former revisions.
                former = {name: replace(new, revision=new.configured) for name, new in revisions.items()}
                self._revisions = former | self._revisions
                raise
            if held:
                raise AnnounceError(_describe_held(held))
            self._engines |= {engine.name: engine for engine in engines}
            self._revisions |= revisions

    async def withdraw(self, *names: str) -> None:
        async with self._write_lock:
            withdrawn = [name for name in names if self._engines.pop(name, None) is not None]
            if withdrawn:
                await self._try_withdraw(withdrawn)

    async def _try_withdraw(self, names: Sequence[str]) -> None:
        try:
            held = await self._write(write_command(self._owner, withdrawn=names))
            if held:  # nothing was written; see `_try_write`
                rest = [name for name in names if name not in held]
                await self._write(write_command(self._owner, withdrawn=rest))
        except AnnounceError as error:  # the lease ends by itself
            self._report_once(str(error))

    async def run(self) -> None:
        """Renews the leases until it is cancelled."""
        while True:
            await asyncio.sleep(RENEWAL_INTERVAL)
            await self.renew()

    async def renew(self) -> None:
        """Announces all engines again; a problem is only reported."""
        async with self._write_lock:
            await self._try_write(self._engines.values())

    async def aclose(self) -> None:
        """Withdraws everything."""
        await self.withdraw(*self._engines)
        await self._redis.aclose()

    async def _try_write(self, engines: Collection[AnnouncedEngine]) -> None:
        problem = None
        try:
            held = await self._write(write_command(self._owner, engines, revisions=self._revisions))
            if held:
                problem = _describe_held(held)
                # All are written or nothing is, so the others need a command of their own.
                rest = [engine for engine in engines if engine.name not in held]
                await self._write(write_command(self._owner, rest, revisions=self._revisions_beside(held)))
        except AnnounceError as error:
            problem = str(error)
        self._report_once(problem)

    async def _write(self, command: tuple[Any, ...]) -> list[str]:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return held_by_others(await self._redis.execute_command(*command))
        except TimeoutError:
            raise AnnounceError(f"cannot announce the engines in Redis: no reply within {_TIMEOUT:g} s") from None
        except (RedisError, RedisClusterException, OSError) as error:
            reason = str(error) or type(error).__name__  # an exception is true, also without a text
            raise AnnounceError(f"cannot announce the engines in Redis: {reason}") from None

    def _revisions_beside(self, held: Collection[str]) -> dict[str, ModelRevision]:
        """Without those of models that only the engines of other launchers serve."""
        own = {engine.model for engine in self._engines.values() if engine.name not in held}
        others = {engine.model for engine in self._engines.values() if engine.name in held} - own
        return {model: revision for model, revision in self._revisions.items() if model not in others}

    @property
    def problem(self) -> str | None:
        """Why the latest announcement was not complete; None if it was."""
        return self._reported

    def _report_once(self, problem: str | None) -> None:
        if problem is not None and problem != self._reported:
            self._report(problem)
        self._reported = problem


def _describe_held(names: Sequence[str]) -> str:
    return (
        f"another launcher announces {', '.join(names)}; give each engine a name of its own "
        f"(if that launcher was killed, this one announces them in less than {LEASE + RENEWAL_INTERVAL:g} s)"
    )
