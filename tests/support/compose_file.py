"""The part of the compose specification that docker-compose.yml uses, as types that refuse everything else.

Source: https://github.com/compose-spec/compose-spec/blob/main/spec.md.
"""

import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta

Duration = Annotated[str, Meta(pattern=r"^(\d+(us|ms|s|m|h))+$")]
Size = Annotated[str, Meta(pattern=r"^\d+[kmg]b?$")]
Published = Annotated[str, Meta(pattern=r"^[^:]*(\$\{[^}]*\})?:.*:\d+$")]
Mount = Annotated[str, Meta(pattern=r"^(\./)?[\w./-]+:/[\w./-]+(:ro)?$")]
Command = Annotated[list[str], Meta(min_length=1)]


class StrictTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table that refuses unknown keys, and so typing errors."""


class HealthCheck(StrictTable, frozen=True):
    test: Annotated[list[str], Meta(min_length=2)]
    interval: Duration
    timeout: Duration
    retries: Annotated[int, Meta(ge=1)]
    start_period: Duration


class Condition(StrictTable, frozen=True):
    condition: Literal["service_started", "service_healthy", "service_completed_successfully"]


class Device(StrictTable, frozen=True):
    driver: Literal["nvidia"]
    device_ids: Annotated[list[str], Meta(min_length=1)]
    capabilities: list[Literal["gpu"]]


class Reservations(StrictTable, frozen=True):
    devices: list[Device]


class Resources(StrictTable, frozen=True):
    reservations: Reservations


class Deploy(StrictTable, frozen=True):
    resources: Resources


class Descriptors(StrictTable, frozen=True):
    soft: int
    hard: int


class Ulimits(StrictTable, frozen=True):
    nofile: Descriptors


class Build(StrictTable, frozen=True):
    context: str
    target: str


class Logging(StrictTable, frozen=True):
    driver: Literal["json-file"]
    options: dict[str, str]


class Service(StrictTable, frozen=True):
    image: Annotated[str, Meta(pattern=r"^[a-z0-9./-]+:[\w.-]+$")]
    networks: Annotated[list[str], Meta(min_length=1)]
    healthcheck: HealthCheck
    restart: Literal["no", "always", "on-failure", "unless-stopped"]
    logging: Logging
    build: str | Build | None = None
    user: str | None = None
    ulimits: Ulimits | None = None
    profiles: list[Literal["monitoring"]] = []
    entrypoint: Command | None = None
    command: list[str] = []
    environment: dict[str, str] = {}
    volumes: list[Mount] = []
    ports: list[Published] = []
    expose: list[str] = []
    depends_on: dict[str, Condition] = {}
    deploy: Deploy | None = None
    shm_size: Size | None = None
    stop_grace_period: Duration | None = None
    read_only: bool = False
    tmpfs: list[str] = []
    cap_drop: list[Literal["ALL"]] = []
    security_opt: list[Literal["no-new-privileges:true"]] = []


class ComposeNetwork(StrictTable, frozen=True):
    internal: bool = False


class Volume(StrictTable, frozen=True):
    pass


class Compose(StrictTable, frozen=True):
    name: str
    services: dict[str, Service]
    networks: dict[str, ComposeNetwork]
    volumes: dict[str, Volume]


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys in one map; keys from a merge (`<<`) may be overridden."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        own_keys = [key.value for key, _ in node.value]
        # A map with an anchor is constructed again for each alias; the first time has merged keys into it.
        if len(set(own_keys)) < len(own_keys) and id(node) not in self._merged:
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        self._merged.add(id(node))
        return super().construct_mapping(node, deep)

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._merged: set[int] = set()


def load_compose(text: str) -> Compose:
    """Parses a compose file. Raises msgspec.ValidationError and yaml.YAMLError."""
    raw: dict[str, Any] = yaml.load(text, Loader=_UniqueKeyLoader)
    # Extensions only hold anchors; their content is checked where it is merged.
    return msgspec.convert({key: value for key, value in raw.items() if not key.startswith("x-")}, Compose)


def options(argv: list[str]) -> dict[str, str | None]:
    """The options of a command line, given as `--name=value`, `--name value` or `--name`."""
    parsed: dict[str, str | None] = {}
    name = ""
    for argument in argv:
        if argument.startswith("--"):
            name, equals_sign, value = argument.partition("=")
            assert name not in parsed, f"{name} is given twice"
            parsed[name] = value if equals_sign else None
        else:
            assert name, f"{argument} belongs to no option"
            assert parsed[name] is None, f"{argument} belongs to no option"
            parsed[name] = argument
    return parsed


def host_of(url: str) -> tuple[str | None, int | None]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def reachable(compose: Compose) -> dict[str, set[str]]:
    """The other services that each service shares a network with, and so can connect to."""
    return {
        name: {
            other
            for other, theirs in compose.services.items()
            if other != name and set(theirs.networks) & set(service.networks)
        }
        for name, service in compose.services.items()
    }


def variables(text: str) -> dict[str, str | None]:
    """The variables of a compose file, with their defaults; None of one that is required."""
    found: dict[str, str | None] = {}
    for name, operator, default in re.findall(r"(?<!\$)\$\{(\w+)(:[-?])?([^}]*)\}", text):
        assert operator, f"{name} has no default and is not required"
        value = default if operator == ":-" else None
        assert found.setdefault(name, value) == value, f"{name} has two defaults"
    return found
