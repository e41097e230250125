"""What Redis says of itself and of its user."""

from collections.abc import Mapping

import msgspec

from router.checks.finding import Problem
from router.net.redis.refusals import WriteRefusal
from router.net.redis.url import RedisKind


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One server that holds keys.

    - `info`: the fields of INFO.
    - `denied`: commands that its user may not send. `untried`: those of which that could not be found out.
    - `hidden_keys`, `protected_keys`: patterns of keys that it may not read; that it may read but not write.
    - `hears_channels`: whether it may use the routers' channels.
    - `refuses_writes`: why it takes no writes from anybody; None if it takes them.
    - `default_has_rights`: whether the user `default` may use all commands and keys; None if this user may not ask.
    - `clock_lead`: how far its clock is ahead of this machine's, in seconds.
    """

    address: str
    info: Mapping[str, str]
    denied: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()
    hidden_keys: tuple[str, ...] = ()
    protected_keys: tuple[str, ...] = ()
    hears_channels: bool = True
    refuses_writes: WriteRefusal | None = None
    default_has_rights: bool | None = None
    clock_lead: float = 0.0


class RedisFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The deployment behind `cache.url`.

    - `problem`: why it cannot be used; then there are no servers.
    - `partial`: problems of single Sentinels or servers, which the others make up for.
    - `has_password`: whether the router logs in. `remote`: whether other machines can reach it.
    """

    kind: RedisKind
    problem: Problem | None = None
    partial: tuple[Problem, ...] = ()
    servers: tuple[ServerFacts, ...] = ()
    has_password: bool = False
    remote: bool = False
