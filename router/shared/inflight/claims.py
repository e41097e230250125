"""The claims of one process: which generations it leads; see router.shared.inflight.inflight_leases."""

import asyncio
import logging
from typing import Final, Literal, Protocol

from router.core.cache.redis_keys import claim_key
from router.net.redis.commands import Command, EncodedAfterPrevious, EncodedCommand, command_template
from router.net.redis.pipeline import RedisDownError, Replies
from router.shared.cache.purges import PurgePosition
from router.shared.inflight.claim import LEASE_DURATION, Claim, encode_claim
from router.shared.scripts import DELETE_IF_SAME, REPLACE_IF_SAME

log = logging.getLogger("roundhouse.flights")

_CLAIM: Final = command_template("SET", None, None, "NX", "PX", int(LEASE_DURATION * 1000))
# A claim is requested together with the entry's creation time: the entry may have been stored since it was looked up.
_READ_CREATED: Final = command_template("HGET", None, "created")
_TAKE_OVER: Final = command_template("EVAL", REPLACE_IF_SAME, 1, None, None, None, int(LEASE_DURATION * 1000))
_RELEASE: Final = command_template("EVAL", DELETE_IF_SAME, 1, None, None)
_RENEW: Final = command_template(
    "EVAL",
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0",
    1,
    None,
    None,
    int(LEASE_DURATION * 1000),
)
_RENEW_BATCH_SIZE: Final = 100  # claims renewed in one batch, so that no lookup waits behind thousands of them


_ClaimArgs = tuple[int, bytes, int, bytes]
"""A claim's key and its value, each after its length: the arguments of _CLAIM and _RELEASE."""


class ClaimPipeline(Protocol):
    """What claims need of a RedisPipeline."""

    def execute(self, *commands: Command | EncodedCommand) -> "asyncio.Future[Replies]": ...

    def send(self, *commands: Command | EncodedCommand) -> None: ...


class PendingClaim:
    """A claim that has been requested, and the replies to come."""

    def __init__(
        self, flight_id: str, digest: str, claim_args: _ClaimArgs, claim_command: bytes,
        lookup_command: Command | EncodedCommand, replies: "asyncio.Future[Replies]",
    ) -> None:  # fmt: skip
        self.flight_id = flight_id
        self.digest = digest
        self.claim_args = claim_args
        self.claim_command = claim_command
        self.lookup_command = lookup_command
        self.replies = replies


class Claims:
    """The claims that this process has, or has requested.

    - Of all processes that claim an entry, one gets it, until it releases the claim, dies, or the entry is purged.
    - Of all processes that `take_over` a claim whose leader is lost, one gets it.
    """

    def __init__(self, pipeline: ClaimPipeline, process_id: str) -> None:
        self._pipeline = pipeline
        self._process_id = process_id
        self._claims: dict[str, _ClaimArgs] = {}

    def begin(self, key: str, digest: str, flight_id: str, purge_position: PurgePosition) -> PendingClaim:
        """Sends the command that claims an entry; `finish` awaits the outcome. Raises RedisDownError.

        Until the outcome is known, the claim counts as ours, so that `release` works when the caller leaves before.
        """
        claim_args, lookup = self._claim_args(key, digest, flight_id, purge_position)
        claim = _CLAIM % claim_args
        pending = PendingClaim(flight_id, digest, claim_args, claim, lookup, self._pipeline.execute(claim, lookup))
        self._claims[flight_id] = claim_args
        return pending

    async def finish(
        self, pending: PendingClaim, replaced_entry_created: float | None = None
    ) -> Claim | Literal["stored"] | None:
        """None if this process has the claim; else the claim of another one, or "stored" if the entry exists by now.

        `replaced_entry_created`: the creation time of the entry that the generation is to replace, which does not count
        as "stored". Raises RedisDownError.
        """
        taken, created = await pending.replies
        holder = None
        if taken is None:  # rare: SET NX has failed, and the claim may be free again by the time that GET runs
            retry = self._pipeline.execute(
                pending.claim_command, ("GET", pending.claim_args[1]), pending.lookup_command
            )
            # `release` or `_renew` may have removed it meanwhile; this second claim must be released again, too.
            self._claims[pending.flight_id] = pending.claim_args
            taken, holder, created = await retry
        if isinstance(taken, Exception):
            raise RedisDownError
        if taken is None:
            self._claims.pop(pending.flight_id, None)
            # A value that is not a valid claim has no leader. The caller gets a claim of its own id instead: nobody
            # writes that stream, so the caller considers the leader lost, and in the end generates without a lease.
            return Claim.decode(holder) or Claim(self._process_id, pending.flight_id, pending.digest)
        if _is_other_entry(created, replaced_entry_created):
            self.release(pending.flight_id)
            return "stored"
        return None

    async def take_over(
        self,
        key: str,
        lost: Claim,
        flight_id: str,
        purge_position: PurgePosition,
        replaced_entry_created: float | None = None,
    ) -> Claim | Literal["stored"] | None:
        """Replaces the claim of a lost leader, or claims an entry whose claim has expired.

        Returns the same as `finish`. Raises RedisDownError.
        """
        (name_size, name, size, value), lookup = self._claim_args(key, lost.digest, flight_id, purge_position)
        lost_value = lost.encode().encode()
        # Before the reply: if the caller is cancelled meanwhile, `release` must give up what Redis may have granted.
        self._claims[flight_id] = (name_size, name, size, value)
        reply, created = await self._pipeline.execute(
            _TAKE_OVER % (name_size, name, len(lost_value), lost_value, size, value), lookup
        )
        if isinstance(reply, Exception):
            raise RedisDownError
        if reply != 1:
            self._claims.pop(flight_id, None)
            return Claim.decode(reply) or Claim(self._process_id, flight_id, lost.digest, purge_position)
        if _is_other_entry(created, replaced_entry_created):
            self.release(flight_id)
            return "stored"
        return None

    def _claim_args(
        self, key: str, digest: str, flight_id: str, purge_position: PurgePosition
    ) -> tuple[_ClaimArgs, Command | EncodedCommand]:
        """The arguments of the claim, and the command that checks whether the entry exists by now."""
        entry, claim_name, value = (
            key.encode(),
            claim_key(key).encode(),
            encode_claim(self._process_id, flight_id, digest, purge_position).encode(),
        )
        return (len(claim_name), claim_name, len(value), value), EncodedAfterPrevious(
            _READ_CREATED % (len(entry), entry)
        )

    def release(self, flight_id: str) -> None:
        """Releases the claim of an in-flight request, if it has or has requested one."""
        claim_args = self._claims.pop(flight_id, None)
        if claim_args is not None:
            self._send_release(claim_args)

    def _send_release(self, claim_args: _ClaimArgs) -> None:
        try:
            # After everything before it: a process that finds no claim must find the entry and the complete stream.
            self._pipeline.send(EncodedAfterPrevious(_RELEASE % claim_args))
        except RedisDownError:
            log.debug("Redis is down: leases will expire")

    async def renew(self) -> None:
        claims = list(self._claims.items())
        for start in range(0, len(claims), _RENEW_BATCH_SIZE):
            await self._renew(claims[start : start + _RENEW_BATCH_SIZE])

    async def _renew(self, claims: list[tuple[str, _ClaimArgs]]) -> None:
        try:
            replies = await self._pipeline.execute(*[_RENEW % claim_args for _, claim_args in claims])
        except RedisDownError:
            return
        for (flight_id, _), reply in zip(claims, replies, strict=True):
            # 0: the claim was purged, or expired while Redis was down, and another process may have the key. Any other
            # reply, such as an error, leaves the claim: the renewal is tried again.
            if reply == 0:
                self._claims.pop(flight_id, None)


def _is_other_entry(created: object, replaced_entry_created: float | None) -> bool:
    """Whether `created`, an entry's field, shows another entry than the one to be replaced. It may be of any type."""
    try:
        return isinstance(created, bytes) and float(created) != replaced_entry_created
    except ValueError:
        return False
