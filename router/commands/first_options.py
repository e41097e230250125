"""The options with which `init` and `serve` get engines that no file describes."""

import os
import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
import typer

from router.commands.console import EXIT_USAGE, fail
from router.core.cache.redis_keys import RESERVED_TENANT_NAMES
from router.settings.access_rules import is_header_value
from router.settings.addresses import base_url, is_engine_url
from router.settings.tables import Name

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

EngineUrlOption = Annotated[
    list[str] | None,
    typer.Option("--engine", metavar="URL", help="URL of an engine, which is asked what it serves; may be repeated."),
]
ServedModelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model", metavar="NAME", help="Only this model of the engines, by the engine's name; may be repeated."
    ),
]
ApiKeyEnvOption = Annotated[
    str | None,
    typer.Option(
        "--api-key-env", metavar="NAME", help="The environment variable with the engines' API key, as VLLM_API_KEY."
    ),
]


def is_variable(name: str) -> bool:
    return _VARIABLE.fullmatch(name) is not None


def check_engine_urls(urls: Sequence[str]) -> None:
    """Exits if one is no URL of an engine; its text may hold a password, and is not repeated."""
    if not all(map(is_engine_url, urls)):
        fail("--engine: expected http://HOST:PORT, https://HOST or unix:///PATH, without a user, password or query",
             EXIT_USAGE)  # fmt: skip
    if len(set(map(base_url, urls))) < len(urls):
        fail("--engine: the same URL twice, or with and without /v1; name each engine once", EXIT_USAGE)


def check_tenants(names: Sequence[str]) -> None:
    """Exits if one cannot be the name of a tenant, or stands twice."""
    for name in names:
        try:
            msgspec.convert(name, Name)
        except msgspec.ValidationError:
            fail(f"--tenant: {name!r}: expected 1 to 64 of a-z, 0-9, '.', '_' and '-'", EXIT_USAGE)
        if name in RESERVED_TENANT_NAMES:
            fail(f"--tenant: {name} is reserved for other Redis keys; choose another name", EXIT_USAGE)
    if len(set(names)) < len(names):
        fail("--tenant: the same name twice; further keys of a tenant: `roundhouse keys new`", EXIT_USAGE)


def check_api_key_env(name: str | None) -> None:
    """Exits if it is no name of a variable: it may be the key itself, and is not repeated."""
    if name is not None and not is_variable(name):
        fail("--api-key-env: expected the name of an environment variable, not the key itself", EXIT_USAGE)
    check_key_of(name)


def check_key_of(name: str | None) -> None:
    """Exits if the variable has a value that no header can carry; without a value, there is nothing to check."""
    key = os.environ.get(name or "")
    if key and not is_header_value(key):
        reason = "is no key: it has spaces at its ends, line breaks, or characters that are not ASCII"
        fail(f"the environment variable {name} {reason}", EXIT_USAGE)
