"""What `roundhouse up` reads and writes in Redis to replace engines, and to let them take turns."""

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisClusterException, RedisError

from router.core.cache.redis_keys import PURGE_LOG_KEY
from router.net.redis.commands import Command
from router.net.redis.errors import UnexpectedReplyError
from router.net.redis.replies import stream_records
from router.shared.cache.logged_purges import LoggedPurges
from router.shared.connection.redis import open_client
from router.shared.engines.announcements import AnnouncedEngine, Fleet, decode_fleet, read_held_command
from router.shared.engines.gpu_groups import (
    GroupState,
    ProcessReport,
    decode_turns,
    decode_view,
    read_turns_command,
    report_process_command,
)
from router.shared.prompts.recent_prompts import (
    RecentPrompt,
    decode_ids,
    decode_prompt,
    read_ids_command,
    read_prompt_command,
)

_TIMEOUT: Final = 5.0  # seconds
_PAGE: Final = 1000  # records of the purge log in one reply


class LauncherRedis:
    """A connection, for the time of one operation with `async with LauncherRedis(url) as redis`.

    If Redis is down, or refuses a command, nothing is known (no requests, no engines).
    """

    def __init__(self, url: str) -> None:
        """Raises RedisUrlError."""
        self._client = open_client(url, timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def recent_prompts(self, model: str, count: int) -> list[RecentPrompt]:
        """The newest `count`, without those that a purge covers; the newest first."""
        prompts: list[RecentPrompt] = []
        ids = decode_ids(await self._execute(read_ids_command(model)))
        purges = await self._logged_purges() if ids else None
        if purges is None:
            return prompts
        for id_ in ids:
            stored = decode_prompt(await self._execute(read_prompt_command(model, id_)))
            if stored is None or purges.covers(stored.key, stored.documents, stored.position):
                continue
            prompts.append(stored.prompt)
            if len(prompts) == count:
                break
        return prompts

    async def _logged_purges(self) -> LoggedPurges | None:
        """None if the log cannot be read."""
        purges = LoggedPurges()
        after = "-"
        while True:
            reply = await self._execute(("XRANGE", PURGE_LOG_KEY, after, "+", "COUNT", _PAGE))
            try:
                records = stream_records(reply)
                purges.add(records)
            except (UnexpectedReplyError, ValueError):
                return None
            if len(records) < _PAGE:
                return purges
            after = "(" + records[-1][0].decode()

    async def foreign_engines(self, own: Collection[str]) -> Sequence[AnnouncedEngine]:
        """The announced engines whose leases hold, without `own`."""
        reply = await self._execute(read_held_command())
        fleet = decode_fleet(reply) if reply is not None else Fleet()
        return [engine for name, engine in fleet.engines.items() if name not in own]

    async def turns_of(self, group: str) -> GroupState | None:
        """Which engines of a GPU are awake; None if that is unknown."""
        try:
            return decode_turns(await self._execute(read_turns_command(group)))[0]
        except UnexpectedReplyError:
            return None

    async def report_process(self, group: str, engine: str, report: ProcessReport) -> GroupState | None:
        """As `turns_of`, after a report on the process of an engine."""
        try:
            return decode_view(await self._execute(report_process_command(group, engine, report))).state
        except UnexpectedReplyError:
            return None

    async def _execute(self, command: Command) -> Any:
        """The reply; None if there is none, or an error."""
        try:
            return await self._client.execute_command(*command)
        except (RedisError, RedisClusterException, OSError):  # RedisClusterException is no RedisError
            return None
