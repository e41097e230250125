"""Ports that are in use, and by which process."""

from typing import Any

import pytest

from engines.preflight.checks.ports import check_ports
from engines.preflight.finding import Finding
from engines.preflight.observations import Port, Process
from tests.support.preflight_facts import make_observations

VLLM = Process(4711, "python -m vllm.entrypoints.openai.api_server")
NGINX = Process(80, "nginx")


def findings(*ports: Port) -> list[Finding]:
    return list(check_ports(make_observations(ports=ports)))


def port(engine: str | None = "llama", number: int = 8001, **fields: Any) -> Port:
    return Port(engine=engine, host="127.0.0.1", port=number, **fields)


def in_use(*owners: Process, is_healthy: bool = False, engine: str | None = "llama") -> Finding:
    (finding,) = findings(port(engine, failure="in use", owners=owners, is_healthy=is_healthy))
    return finding


def test_free_ports_are_no_problem() -> None:
    assert findings(port(None, 8080), port("a", 8001), port("b", 8002)) == []


def test_the_owner_of_a_port_is_named() -> None:
    found = in_use(NGINX)
    assert (found.severity, found.engine, found.setting) == ("error", "llama", "url")
    assert found.problem == "port 8001 is in use by process 80 (nginx), which does not answer /health"
    assert "`kill 80`" in found.remedy


def test_a_dead_engine_is_to_be_killed_because_it_may_hold_a_gpu() -> None:
    found = in_use(VLLM)
    assert "process 4711 (python -m vllm.entrypoints.openai.api_server), which does not answer" in found.problem
    assert "`kill -9 4711`" in found.remedy
    assert "GPU" in found.remedy


def test_a_healthy_engine_is_not_called_dead() -> None:
    found = in_use(VLLM, is_healthy=True)
    assert "which answers /health" in found.problem
    assert "kill -9" not in found.remedy


def test_all_processes_that_share_a_port_are_named() -> None:
    found = in_use(VLLM, Process(4712, "VLLM::EngineCore"))
    assert "process 4711 (python -m vllm.entrypoints.openai.api_server) and process 4712" in found.problem
    assert "4711 4712" in found.remedy


def test_without_the_right_to_see_the_owner_the_command_that_shows_it_is_named() -> None:
    found = in_use()
    assert "a process that this user may not see" in found.problem
    assert "sudo ss" in found.remedy


def test_the_port_of_the_router_is_checked_too() -> None:
    found = in_use(NGINX, engine=None)
    assert (found.engine, found.setting) == (None, "router.port")


@pytest.mark.parametrize(
    ("failure", "problem"),
    [
        ("no such address", "127.0.0.1 is not an address of this machine"),
        ("unknown host", "127.0.0.1 is not the name of a host"),
        ("not permitted", "this user may not listen on port 8001"),
    ],
)
def test_other_reasons_why_an_address_cannot_be_used_are_explained(failure: Any, problem: str) -> None:
    (found,) = findings(port(failure=failure))
    assert (found.severity, found.problem) == ("error", problem)
    assert found.remedy


def test_two_engines_on_one_port_are_reported_although_it_is_free() -> None:
    (found,) = findings(port("a"), port("b"))
    assert (found.engine, found.problem) == ("b", "port 8001 is also the port of a")


def test_an_engine_on_the_port_of_the_router_is_reported() -> None:
    (found,) = findings(port(None, 8080), port("a", 8080))
    assert (found.engine, found.problem) == ("a", "port 8080 is also the port of the router")
