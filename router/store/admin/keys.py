"""Creates, lists and revokes the API keys that live in Redis; see key_confirmation for when a change is in effect."""

import secrets
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from router.core.api_keys import (
    MAX_EXPIRY,
    MAX_KEYS,
    MIN_EXPIRY,
    KeyRecord,
    find_records,
    find_revoked,
    hash_key,
    is_key_name,
    key_id,
)
from router.errors import NOT_FOUND, ApiError, bad_request
from router.net.redis.errors import RedisBackendError
from router.settings import Settings
from router.settings.units import Seconds, parse_quantity
from router.shared.audit.recorded import uninterrupted
from router.shared.credentials.key_records import (
    PRESENCE_LIFETIME,
    Presence,
    StoredRecords,
    decode_presences,
    decode_records,
    decode_used,
    merge_commands,
    read_presences_command,
    read_records_command,
    read_used_command,
    remove_records_command,
    withdraw_command,
)
from router.store.admin.key_confirmation import Confirmation, wait_for_routers
from router.store.admin.scan import RedisClient, execute_commands, read_redis_clock

_MAX_REMOVED: Final = 500  # records in one command


async def _ignore(_: KeyRecord) -> None:
    pass


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """`key`: the key itself, which is known only now. Times in seconds since the epoch; `expires`: None is never."""

    key: str
    key_id: str
    tenant: str
    name: str
    created: float
    expires: float | None
    routers: Confirmation


class RevokedKey(msgspec.Struct, frozen=True, kw_only=True):
    """`revoked`: when, in seconds since the epoch; earlier than now if it was revoked already."""

    key_id: str
    tenant: str
    name: str
    revoked: float
    routers: Confirmation


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the configuration or of Redis. Times in seconds since the epoch.

    - `source`: `configuration` or `redis`; `status`: `active`, `expired`, `revoked`, or `no tenant` if its tenant is
      not configured, so that it is refused.
    - `last_used`: to some seconds; None if it never was, or if Redis was not asked.
    """

    key_id: str
    role: str
    tenant: str | None
    name: str | None = None
    source: str = "configuration"
    status: str = "active"
    created: float | None = None
    expires: float | None = None
    last_used: int | None = None


class _State(NamedTuple):
    """What Redis has, and its time."""

    records: StoredRecords
    presences: dict[str, Presence]
    now: float


OnWritten = Callable[[KeyRecord], Awaitable[None]]
"""Called when Redis has a changed record, before the routers have confirmed it."""


async def create_key(
    client: RedisClient,
    settings: Settings,
    *,
    tenant: str,
    name: str,
    expires_in: float | None,
    on_written: OnWritten = _ignore,
) -> NewKey:
    """`expires_in` seconds; None is never. Raises ApiError for an invalid argument, and RedisBackendError."""
    _check_request(settings, tenant, name, expires_in)
    state = await _read_state(client)
    records = await _remove_obsolete(client, state)
    if len(records) >= MAX_KEYS:
        raise bad_request(f"Redis has {MAX_KEYS:,} keys already, which is the maximum.", code="too_many_keys")
    same_name = [record for record in find_records(records, name, tenant) if record.is_valid(state.now)]
    if same_name:
        raise ApiError(409, f"The tenant has a key of this name, {same_name[0].id}.", param="name", code="key_exists")
    taken = {record.id for record in records} | set(_configured_ids(settings))
    key = "rh-" + secrets.token_urlsafe(32)
    while key_id(hash_key(key.encode())) in taken:
        key = "rh-" + secrets.token_urlsafe(32)
    record = KeyRecord(
        hash=hash_key(key.encode()),
        tenant=tenant,
        name=name,
        created=state.now,
        expires=state.now + expires_in if expires_in is not None else None,
    )
    confirmation = await _write(client, record, state, on_written)
    return NewKey(
        key=key, key_id=record.id, tenant=tenant, name=name, created=record.created, expires=record.expires,
        routers=confirmation,
    )  # fmt: skip


async def revoke_key(
    client: RedisClient,
    settings: Settings,
    id_or_name: str,
    tenant: str | None = None,
    on_written: OnWritten = _ignore,
) -> RevokedKey:
    """Idempotent, by name too. `tenant`: the one that has a key of this name. Raises ApiError and RedisBackendError."""
    state = await _read_state(client)
    records = state.records.by_id.values()
    found = find_records(records, id_or_name, tenant) or find_revoked(records, id_or_name, tenant)
    if len(found) > 1:
        ids = ", ".join(f"{record.id} ({record.tenant})" for record in found[:10])
        raise ApiError(409, f"Several keys have this name: {ids}. Name one by its id.", code="ambiguous_key")
    if not found:
        raise _not_found(settings, id_or_name)
    if any(found[0].hash in tenant.keys for tenant in settings.tenant):  # the routers would go on accepting it
        raise _is_configured()
    record = found[0] if found[0].revoked is not None else replace(found[0], revoked=state.now)
    confirmation = await _write(client, record, state, on_written)
    return RevokedKey(
        key_id=record.id, tenant=record.tenant, name=record.name, revoked=record.revoked or 0, routers=confirmation
    )


async def list_keys(client: RedisClient, settings: Settings) -> list[KeyRow]:
    """Those of the configuration, then those of Redis by tenant and age. Raises RedisBackendError."""
    state = await _read_state(client)
    (reply,) = await execute_commands(client, [read_used_command()])
    used = decode_used(reply)
    tenants = {tenant.name for tenant in settings.tenant}
    records = sorted(state.records.by_id.values(), key=lambda record: (record.tenant, record.created))
    rows = [*configured_keys(settings), *[_row(record, tenants, state.now) for record in records]]
    return [replace(row, last_used=used.get(row.key_id)) for row in rows]


def configured_keys(settings: Settings) -> list[KeyRow]:
    admin = [KeyRow(key_id=key_id(key), role="admin", tenant=None) for key in settings.auth.admin_keys]
    of_tenants = [(key, tenant.name) for tenant in settings.tenant for key in tenant.keys]
    return admin + [KeyRow(key_id=key_id(key), role="tenant", tenant=name) for key, name in of_tenants]


def _row(record: KeyRecord, tenants: Collection[str], now: float) -> KeyRow:
    if record.revoked is not None:
        status = "revoked"
    elif record.is_expired(now):
        status = "expired"
    else:
        status = "active" if record.tenant in tenants else "no tenant"
    return KeyRow(
        key_id=record.id, role="tenant", tenant=record.tenant, name=record.name, source="redis", status=status,
        created=record.created, expires=record.expires,
    )  # fmt: skip


def _configured_ids(settings: Settings) -> Iterator[str]:
    return (row.key_id for row in configured_keys(settings))


def _check_request(settings: Settings, tenant: str, name: str, expires_in: float | None) -> None:
    if settings.auth_mode != "keys":
        message = f'auth.mode is "{settings.auth_mode}", with which no key is asked for; set it to "keys" first.'
        raise bad_request(message, code="no_keys_mode")
    if tenant not in {each.name for each in settings.tenant}:
        known = ", ".join(each.name for each in settings.tenant[:20])
        raise bad_request(f"The tenant is not configured; the tenants are {known}.", param="tenant", code="no_tenant")
    if not is_key_name(name):
        message = "A key's name has 1 to 64 of A-Z a-z 0-9 . _ -, begins with a letter or digit, and is not like an id."
        raise bad_request(message, param="name", code="invalid_name")
    if expires_in is not None and not MIN_EXPIRY <= expires_in <= MAX_EXPIRY:
        raise bad_request("A key expires after 1m at the earliest, and 3650d at the latest.", param="expires",
                          code="invalid_expiry")  # fmt: skip


def _not_found(settings: Settings, id_or_name: str) -> ApiError:
    if id_or_name in set(_configured_ids(settings)):
        return _is_configured()
    return ApiError(404, "Redis has no such key.", kind=NOT_FOUND, code="no_such_key")


def _is_configured() -> ApiError:
    message = "This key is in the configuration: remove its hash there, and reload the routers."
    return ApiError(409, message, code="key_is_configured")


async def _read_state(client: RedisClient) -> _State:
    now = (await read_redis_clock(client)).now()
    records, presences = await execute_commands(client, [read_records_command(), read_presences_command()])
    if records is None:
        records = {}
    return _State(decode_records(records), decode_presences(presences), now)


async def _remove_obsolete(client: RedisClient, state: _State) -> list[KeyRecord]:
    """Removes the records of keys that ended long ago, and the marks of processes that did; returns the others."""
    obsolete = [record.id for record in state.records.by_id.values() if record.is_obsolete(state.now)]
    commands = [remove_records_command(obsolete[:_MAX_REMOVED])] if obsolete else []
    gone = [process for process, each in state.presences.items() if abs(state.now - each.at) > 10 * PRESENCE_LIFETIME]
    if gone:
        commands.append(withdraw_command(*gone))
    await execute_commands(client, commands)
    removed = set(obsolete[:_MAX_REMOVED])
    return [record for record in state.records.by_id.values() if record.id not in removed]


async def _write(client: RedisClient, record: KeyRecord, state: _State, on_written: OnWritten) -> Confirmation:
    # Later than what any process applies: Redis may have lost the records, and its clock may be behind.
    known = max([state.records.version, *[presence.version for presence in state.presences.values()]])
    (command,) = merge_commands([record], known)

    async def write() -> int:
        (reply,) = await execute_commands(client, [command])
        if not isinstance(reply, list):
            raise RedisBackendError("the key of the records has a value of another type")
        if not reply[0] and record.revoked is None:
            raise ApiError(409, "Another key got the same id at this moment; create one again.", code="key_exists")
        await on_written(record)
        return int(reply[1])

    return await wait_for_routers(client, await uninterrupted(write()))


def parse_expiry(value: Any) -> float | None:
    """Seconds from a duration such as `90d`; None stays None. Raises ApiError."""
    if value is None:
        return None
    try:
        return float(parse_quantity(Seconds, value))
    except ValueError as error:
        raise bad_request(f"`expires` {error}.", param="expires", code="invalid_expiry") from None
