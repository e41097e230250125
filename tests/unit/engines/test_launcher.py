"""Which program `roundhouse up` starts for its engines, and what it says if there is none."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec

import pytest

from engines import launcher
from engines.launcher import ProgramNotInstalledError, choose_program
from engines.plan import EngineKind, UpPlan
from engines.spec import EngineSpec, LaunchSpec

LAUNCHED = EngineSpec(
    name="e", model="m", task="any", url="http://127.0.0.1:8001", served_model="m", launch=LaunchSpec(target="m")
)
ELSEWHERE = EngineSpec(name="far", model="m", task="any", url="http://far:8001", served_model="m")


def plan(kind: EngineKind, engine: EngineSpec = LAUNCHED, vllm_python: str | None = None) -> UpPlan:
    return UpPlan(
        state="/state", control_socket="/state/up.sock", redis_socket=None, redis_url="redis://h", router=None,
        kind=kind, vllm_python=vllm_python, engines=[engine], example_model="m",
    )  # fmt: skip


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The programs that are installed; a test adds to it."""
    found: set[str] = set()

    def find_spec(name: str) -> ModuleSpec | None:
        return importlib.util.find_spec("engines") if name in found else None

    monkeypatch.setattr(launcher, "find_spec", find_spec)
    return found


def test_vllm_comes_before_the_simulator(installed: set[str]) -> None:
    installed |= {"engines.simulator"}
    assert choose_program(plan("auto")) == "simulator"
    installed |= {"vllm"}
    assert choose_program(plan("auto")) == "vllm"
    assert choose_program(plan("simulator")) == "simulator"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("simulator", "the simulator is not installed here; `pip install 'roundhouse-router[simulator]'`"),
        (
            "auto",
            (
                "neither vLLM nor the simulator is installed here; `pip install 'roundhouse-router[vllm]'`, or for "
                "simulated engines `pip install 'roundhouse-router[simulator]'`"
            ),
        ),
        ("vllm", "vLLM is not installed here; `pip install 'roundhouse-router[vllm]'`, or `make run ENGINES=vllm`"),
    ],
)
def test_what_is_missing_is_named_with_its_extra(installed: set[str], kind: EngineKind, said: str) -> None:
    assert not installed
    with pytest.raises(ProgramNotInstalledError) as caught:
        choose_program(plan(kind))
    assert str(caught.value) == said


def test_neither_is_needed_if_every_engine_runs_elsewhere(installed: set[str]) -> None:
    assert not installed
    assert choose_program(plan("auto", ELSEWHERE)) == "simulator"


def test_the_simulator_is_needed_even_if_a_python_with_vllm_is_named(installed: set[str]) -> None:
    assert not installed
    assert choose_program(plan("auto", vllm_python=sys.executable)) == "vllm"
    with pytest.raises(ProgramNotInstalledError, match="the simulator is not installed"):
        choose_program(plan("simulator", vllm_python=sys.executable))
