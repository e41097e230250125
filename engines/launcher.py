"""Chooses the program for an engine, and its command and timeout."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from engines.plan import UpPlan
from engines.spec import EngineSpec, LaunchSpec
from engines.vllm_command import vllm_argv, vllm_env

Program = Literal["vllm", "simulator"]

# Of simulated engines: slow enough that a person sees a cache miss, fast enough not to wait for it.
_TTFT_MS: Final = 150
_TOKENS_PER_SECOND: Final = 80

_READY_TIMEOUT: Final[dict[Program, float]] = {
    "vllm": 1800.0,
    "simulator": 30.0,
}  # seconds; weights may have to be loaded


class ProgramNotInstalledError(Exception):
    """The requested engines cannot run on this machine."""


class EngineCommand(msgspec.Struct, frozen=True):
    """How to start an engine.

    `env` is added to the environment, `ready_timeout` is in seconds, `description` is for a person.
    """

    argv: list[str]
    env: dict[str, str]
    ready_timeout: float
    description: str


def choose_program(plan: UpPlan) -> Program:
    """vLLM if it is installed, else the simulator; `plan.kind` forces one.

    Raises ProgramNotInstalledError if the requested program is not installed.
    """
    if plan.vllm_python is not None:
        if plan.kind != "simulator" and not Path(plan.vllm_python).is_file():
            raise ProgramNotInstalledError(f"--vllm-python: there is no {plan.vllm_python}")
        installed = True
    else:
        installed = find_spec("vllm") is not None
    if plan.kind == "vllm" and not installed:
        raise ProgramNotInstalledError(
            "vLLM is not installed here; `pip install roundhouse[vllm]`, or `make run ENGINES=vllm`"
        )
    return "vllm" if installed and plan.kind != "simulator" else "simulator"


def engine_command(spec: EngineSpec, program: Program, plan: UpPlan) -> EngineCommand:
    """How to start this engine with this program. The spec must have a `launch`."""
    assert spec.launch is not None
    launch = spec.launch
    draft = None if launch.speculation_method is None else launch.draft or launch.speculation_method
    model_names = launch.target + (f" + {draft}" if draft is not None else "")
    if program == "vllm":
        python = plan.vllm_python or sys.executable
        return EngineCommand(
            vllm_argv(spec, python),
            vllm_env(spec, cpu=_uses_cpu(launch)),
            _READY_TIMEOUT[program],
            f"vLLM, {model_names}",
        )
    argv = [sys.executable, "-m", "engines.simulator", "--host", spec.host, "--port", str(spec.port)]
    argv += ["--model", launch.target, "--served-model-name", spec.served_model, *launch.lora]
    argv += ["--ttft-ms", str(_TTFT_MS), "--tokens-per-second", str(_TOKENS_PER_SECOND)]
    if spec.max_model_len is not None:
        argv += ["--max-model-len", str(spec.max_model_len)]
    if draft is not None:
        argv += ["--draft", draft, "--num-speculative-tokens", str(launch.num_speculative_tokens)]
    if launch.max_num_seqs is not None:
        argv += ["--max-num-seqs", str(launch.max_num_seqs)]
    return EngineCommand(argv, {}, _READY_TIMEOUT[program], f"simulated instead of {model_names}")


def _uses_cpu(launch: LaunchSpec) -> bool:
    if launch.device != "auto":
        return launch.device == "cpu"
    return not any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))
