"""deploy/kubernetes: the configuration is valid, and agrees with the engines."""

import json
from pathlib import Path

import msgspec
import pytest

from engines.spec import EngineSpec
from engines.vllm_command import vllm_argv
from router.net.redis.url import parse_redis_url
from router.settings import load
from tests.support.compose_file import host_of, options
from tests.support.kubernetes_manifests import (
    ENGINES,
    HASH,
    allowed,
    container,
    environment,
    named,
    of_kind,
    settings_of,
)
from tests.support.kustomization import Manifest, containers, pod_spec
from tests.support.paths import ROOT


def test_the_configuration_is_valid_and_closed(overlay: str, manifests: list[Manifest], tmp_path: Path) -> None:
    settings = settings_of(manifests, tmp_path)
    assert (settings.router.host, settings.router.port) == ("0.0.0.0", 8080)
    assert settings.auth.mode == "keys"
    assert settings.auth.admin_keys == [HASH]
    assert all(tenant.keys for tenant in settings.tenant)
    kinds = {"sentinel": "redis+sentinel://", "cluster": "redis+cluster://"}
    assert settings.cache.url.startswith(f"{kinds.get(overlay, 'redis://')}roundhouse:redis-password@")
    parse_redis_url(settings.cache.url)


def test_redis_is_reached_at_its_service_and_port(overlay: str, manifests: list[Manifest], tmp_path: Path) -> None:
    url = settings_of(manifests, tmp_path).cache.url
    hosts = url.partition("@")[2].partition("/")[0].split(",")
    ports = {port for direction, pods, peer, port in allowed(manifests)
             if direction == "egress" and "router" in pods and "redis" in peer}  # fmt: skip
    assert {int(host.partition(":")[2]) for host in hosts} <= ports
    if overlay in ("single-redis", "autoscaled"):
        (host,) = hosts
        service = named(manifests, "Service", host.partition(":")[0])
        assert service["spec"]["ports"][0]["port"] == int(host.partition(":")[2])


def test_each_engine_of_the_configuration_is_a_pod(manifests: list[Manifest], tmp_path: Path) -> None:
    pods = {
        f"{workload['metadata']['name']}-{number}": (workload["spec"]["serviceName"], options(vllm["args"]))
        for workload in of_kind(manifests, "StatefulSet")
        for vllm in pod_spec(workload)["containers"]
        if vllm["name"] == "vllm"
        for number in range(workload["spec"].get("replicas", 1))
    }
    settings = settings_of(manifests, tmp_path)
    assert {engine.name for engine in settings.engine} == set(pods)
    for engine in settings.engine:
        service, arguments = pods[engine.name]
        assert host_of(engine.addresses[0]) == (f"{engine.name}.{service}", int(arguments["--port"] or ""))
        assert engine.served_model == arguments["--served-model-name"]
        assert engine.max_model_len == int(arguments["--max-model-len"] or "")


def test_router_and_engine_have_the_same_key(overlay: str, manifests: list[Manifest], tmp_path: Path) -> None:
    engines = settings_of(manifests, tmp_path).engine
    theirs = {environment(each).get("VLLM_API_KEY") for _, _, each in containers(manifests) if each["name"] == "vllm"}
    # Routers ignore an announced engine whose configuration has a key.
    expected = None if overlay == "autoscaled" else "engine-key"
    assert {engine.api_key for engine in engines} == theirs == {expected}


def test_models_and_engines_are_those_of_the_configuration_for_one_machine(
    manifests: list[Manifest], tmp_path: Path
) -> None:
    ours, theirs = settings_of(manifests, tmp_path), load(ROOT / "roundhouse.toml", {})
    assert [msgspec.structs.replace(model, fallback=None, wake=None) for model in ours.model] == theirs.model
    for mine, other in zip(ours.engine, theirs.engine, strict=True):
        assert (mine.name, mine.model, mine.task) == (f"{other.name}-0", other.model, other.task)


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_started_as_roundhouse_up_starts_it(manifests: list[Manifest], name: str) -> None:
    settings = load(ROOT / "roundhouse.toml", {})
    engine = next(engine for engine in settings.engine if engine.name == name)
    fields = msgspec.to_builtins(engine) | {"url": engine.addresses[0], "revision": ""}
    wanted = vllm_argv(msgspec.convert(fields, EngineSpec), "python3")
    vllm = container(manifests, "vllm", name)
    assert vllm["command"] == wanted[:3]
    actual, ours = options(vllm["args"]), options(wanted[3:])
    assert actual.pop("--host") == "0.0.0.0"
    assert int(actual.pop("--port") or "") == vllm["ports"][0]["containerPort"]
    actual.pop("--shutdown-timeout", None)
    del ours["--host"], ours["--port"]
    drafts = [json.loads(each.pop("--speculative-config") or "") for each in (actual, ours)]
    assert actual == ours
    assert drafts[0] == drafts[1]
