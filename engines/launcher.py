"""Chooses the program for an engine, and its command and timeout."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from engines.placement.ray_request import RayRequest, describe_resources
from engines.plan import UpPlan
from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import kv_events_options, listen_options, lora_modules, vllm_argv, vllm_env
from router.core.types import EngineTask

Program = Literal["vllm", "simulator"]

SIMULATED_PACE: Final = (
    "--ttft-ms=150", "--tokens-per-second=80", "--prefill-tokens-per-second=4000", "--decode-ms=0.2",
)  # fmt: skip
"""Of simulated engines: slow enough that a person sees a cache miss, and a prompt that is not in the prefix cache of an
engine; fast enough not to wait for it."""

SIMULATED_SLEEP: Final = ("--sleep-ms=500", "--wake-ms=1000")

# Acceptance of draft tokens in chat and in code. Like a real draft, one is good at the prompts of its engine's task, so
# that the router finds out what the README says.
_ACCEPTANCE: Final[dict[EngineTask, tuple[float, float]]] = {
    "chat": (0.75, 0.4),
    "code": (0.4, 0.75),
    "any": (0.6, 0.6),
}

_READY_TIMEOUT: Final[dict[Program, float]] = {
    "vllm": 1800.0,
    "simulator": 30.0,
}  # seconds; weights may have to be loaded
_INSTALL_VLLM: Final = "`pip install 'roundhouse-router[vllm]'`"
_INSTALL_SIMULATOR: Final = "`pip install 'roundhouse-router[simulator]'`"
_RAY_START: Final = 60.0  # seconds in addition, to connect to Ray and to be placed


class ProgramNotInstalledError(Exception):
    """The requested engines cannot run on this machine."""


class EngineCommand(msgspec.Struct, frozen=True):
    """How to start an engine.

    `env` is added to the environment, `ready_timeout` is in seconds, `description` is for a person. `ray_request` is
    what to ask Ray for; None on this machine.
    """

    argv: list[str]
    env: dict[str, str]
    ready_timeout: float
    description: str
    ray_request: RayRequest | None = None


def choose_program(plan: UpPlan) -> Program:
    """vLLM if it is installed, else the simulator; `plan.kind` forces one.

    Raises ProgramNotInstalledError if the requested program is not installed, and with `auto` if neither is.
    """
    if plan.vllm_python is not None:
        if plan.kind != "simulator" and not Path(plan.vllm_python).is_file():
            raise ProgramNotInstalledError(f"--vllm-python: there is no {plan.vllm_python}")
        installed = True
    else:
        installed = find_spec("vllm") is not None
    if plan.kind == "vllm" and not installed:
        raise ProgramNotInstalledError(f"vLLM is not installed here; {_INSTALL_VLLM}, or `make run ENGINES=vllm`")
    if installed and plan.kind != "simulator":
        return "vllm"
    # The simulator is a distribution of its own, and not needed if every engine runs elsewhere.
    if find_spec("engines.simulator") is None and any(spec.launch is not None for spec in plan.engines):
        raise ProgramNotInstalledError(
            f"the simulator is not installed here; {_INSTALL_SIMULATOR}"
            if plan.kind == "simulator"
            else f"neither vLLM nor the simulator is installed here; {_INSTALL_VLLM}, "
            f"or for simulated engines {_INSTALL_SIMULATOR}"
        )
    return "simulator"


def engine_command(spec: EngineSpec, program: Program, plan: UpPlan) -> EngineCommand:
    """How to start this engine with this program. The spec must have a `launch`."""
    assert spec.launch is not None
    launch = spec.launch
    draft = None if launch.speculation_method is None else launch.draft or launch.speculation_method
    model_names = launch.target + (f" + {draft}" if draft is not None else "")
    request = None if launch.placement == "local" else _ray_request(launch, program)
    timeout = _READY_TIMEOUT[program] + (0.0 if request is None else _RAY_START)
    where = "" if request is None else f", on a Ray node with {describe_resources(request.on_one_node)}"
    if program == "vllm":
        cpu = _uses_cpu(launch)
        argv = vllm_argv(spec, plan.vllm_python or sys.executable, cpu=cpu)
        return EngineCommand(argv, vllm_env(spec, cpu), timeout, f"vLLM, {model_names}{where}", request)
    description = f"simulated instead of {model_names}{where}"
    return EngineCommand(_simulator_argv(spec, launch, draft), {}, timeout, description, request)


def _simulator_argv(spec: EngineSpec, launch: LaunchSpec, draft: str | None) -> list[str]:
    argv = [sys.executable, "-m", "engines.simulator", *listen_options(spec)]
    argv += ["--model", launch.target, "--served-model-name", spec.served_model]
    argv += [*SIMULATED_PACE, "--enable-prompt-tokens-details"]
    argv += kv_events_options(spec)
    if spec.sleep == "vllm":
        argv += ["--server-dev-mode", *SIMULATED_SLEEP]
    if launch.lora:
        argv += ["--enable-lora", "--lora-modules", *lora_modules(launch)]
    if spec.max_model_len is not None:
        argv += ["--max-model-len", str(spec.max_model_len)]
    if draft is not None:
        chat, code = _ACCEPTANCE[spec.task]
        argv += ["--draft", draft, "--num-speculative-tokens", str(launch.num_speculative_tokens)]
        argv += ["--acceptance", str(chat), "--code-acceptance", str(code)]
        argv += ["--per-request-spec-decode-metrics", "summary"]
    if launch.max_num_seqs is not None:
        argv += ["--max-num-seqs", str(launch.max_num_seqs)]
    return argv


def _ray_request(launch: LaunchSpec, program: Program) -> RayRequest:
    uses_gpus = program == "vllm" and not _uses_cpu(launch)
    return RayRequest(launch.tensor_parallel * launch.pipeline_parallel_size if uses_gpus else 0, launch.resources)


def _uses_cpu(launch: LaunchSpec) -> bool:
    if launch.device != "auto":
        return launch.device == "cpu"
    if launch.placement == "ray":
        return False  # whatever this machine has
    return not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))
