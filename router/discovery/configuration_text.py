"""Writes a plan as a configuration file, with comments for the person who continues it."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from router.discovery.plan import Answer, Plan, PlannedEngine, PlannedModel

DEFAULT_REDIS: Final = "redis://127.0.0.1:6379"

_HEAD: Final = """\
# Written by `roundhouse init`. docs/configuration.md describes every setting.
# `roundhouse check` tests this file, and `roundhouse serve` runs the router.

[router]
host = "127.0.0.1"         # "0.0.0.0" lets other machines connect: set up API keys before
port = {port}
# workers = 2              # processes; at most one per core

[cache]
url = {redis}
# ttl = "24h"              # how long a response is served from the cache

[batch]
folder = ".roundhouse/files"    # several routers need the same folder
"""
_NO_TENANTS: Final = """\
# API keys: `roundhouse keys new` makes one, and its hash for this file. Without keys, everybody may send requests.
"""
_AUTH_EXAMPLE: Final = """\
# [auth]
# mode = "keys"
#
"""
_TENANT_EXAMPLE: Final = """\
# [[tenant]]
# name = "acme"
# keys = ["sha256:..."]
"""
_CREDENTIALS: Final = re.compile(r"^(?P<scheme>[a-z+]+://)(?P<user>[^:@/]*):(?P<password>[^@]*)@")
_SENTINEL_PASSWORD: Final = re.compile(r"(?<=[?&]sentinel_password=)[^&]*")


class FirstKeys(msgspec.Struct, frozen=True):
    """Hashes of new keys: of tenants, by name, and of an administrator."""

    tenants: Mapping[str, str] = {}
    admin: str | None = None


NO_KEYS: Final = FirstKeys()


def configuration_text(
    plan: Plan, *, redis_url: str, api_key_variable: str | None = None, port: int = 8080, keys: FirstKeys = NO_KEYS
) -> str:
    """A TOML file. It has no secret: passwords and keys are hashes, or references to environment variables.

    If no model is known, a placeholder stands for it, so that the file can be read and corrected.
    """
    parts = [_HEAD.format(port=port, redis=_quote(without_passwords(redis_url)[0])), _access(keys)]
    parts += [part for model in plan.models for part in _model(model, api_key_variable)]
    for number, answer in enumerate(plan.unknown, 1):
        parts += _unknown(answer, number, api_key_variable, comment=bool(plan.models))
    return "\n".join(parts)


def _access(keys: FirstKeys) -> str:
    auth = ['mode = "keys"'] if keys.tenants else []
    auth += [f"admin_keys = [{_quote(keys.admin)}]    # for /admin and the dashboard"] if keys.admin is not None else []
    parts = ["\n".join(["[auth]", *auth, ""])] if auth else []
    parts += [f"[[tenant]]\nname = {_quote(name)}\nkeys = [{_quote(hash_)}]\n" for name, hash_ in keys.tenants.items()]
    if not keys.tenants:
        parts.append(_NO_TENANTS + ("" if auth else _AUTH_EXAMPLE) + _TENANT_EXAMPLE)
    return "\n".join(parts)


def without_passwords(redis_url: str) -> tuple[str, list[str]]:
    """The address with variables in place of passwords, and the names of the variables."""
    variables = []
    found = _CREDENTIALS.match(redis_url)
    if found is not None and not found["password"].startswith("${"):
        redis_url = f"{found['scheme']}{found['user']}:${{REDIS_PASSWORD}}@{redis_url[found.end() :]}"
        variables.append("REDIS_PASSWORD")
    own = _SENTINEL_PASSWORD.search(redis_url)
    if own is not None and not own[0].startswith("${"):
        redis_url = _SENTINEL_PASSWORD.sub("${SENTINEL_PASSWORD}", redis_url)
        variables.append("SENTINEL_PASSWORD")
    return redis_url, variables


def _model(model: PlannedModel, api_key_variable: str | None) -> Iterator[str]:
    lines = ["[[model]]", f"name = {_quote(model.name)}"]
    if model.aliases:
        lines.append(f"aliases = [{', '.join(map(_quote, model.aliases))}]")
    yield "\n".join([*lines, ""])
    for engine in model.engines:
        yield _engine(engine, model.name, api_key_variable)


def _engine(engine: PlannedEngine, model: str, api_key_variable: str | None) -> str:
    lines = ["[[engine]]", f"name = {_quote(engine.name)}", f"model = {_quote(model)}"]
    if len(engine.urls) == 1:
        lines.append(f"url = {_quote(engine.urls[0])}")
    else:
        lines.append(f"urls = [{', '.join(map(_quote, engine.urls))}]")
    lines.append(f"served_model = {_quote(engine.served_model)}")
    if engine.kind is not None:
        lines.append(f"kind = {_quote(engine.kind)}")
    if engine.max_model_len is not None:
        lines.append(f"# max_model_len = {engine.max_model_len}    # the router reads it from the engine")
    return "\n".join([*lines, *_key(api_key_variable), ""])


def _unknown(answer: Answer, number: int, api_key_variable: str | None, *, comment: bool) -> Iterator[str]:
    why = f"# When this file was written, the engine at {answer.url} could not be asked: {answer.problem}."
    name = f"engine-{number}"
    model = [] if not comment and number > 1 else ["[[model]]", 'name = "model"', ""]
    engine = ["[[engine]]", f"name = {_quote(name)}", 'model = "model"', f"url = {_quote(answer.url)}"]
    engine += ['served_model = "model"', *_key(api_key_variable)]
    if not comment:
        yield "\n".join([f"{why}\n# Put the names of its model here, or run `roundhouse init --force` once it is up.",
                         *model, *engine, ""])  # fmt: skip
        return
    lines = [line for line in engine if not line.startswith("model =")]
    yield "\n".join(
        [f"{why}\n# Complete this once it is up:", *[f"# {line}" for line in [*lines, 'model = "..."']], ""]
    )


def _key(api_key_variable: str | None) -> list[str]:
    return [] if api_key_variable is None else [f'api_key = "${{{api_key_variable}}}"']


def _quote(text: str) -> str:
    """A TOML basic string has JSON's escapes."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
