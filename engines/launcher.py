"""Which program an engine is, and how long it may take to be ready."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

import msgspec

from engines.plan import UpPlan
from engines.spec import EngineSpec
from engines.vllm_command import vllm_argv, vllm_env

Program = Literal["vllm", "simulator"]

# What a simulated engine takes: enough to see a miss, little enough not to wait for it.
_TTFT_MS: Final = 150
_TOKENS_PER_SECOND: Final = 80

_READY_TIMEOUT: Final[dict[Program, float]] = {
    "vllm": 1800.0,
    "simulator": 30.0,
}  # seconds; weights may have to be loaded


class ProgramNotInstalledError(Exception):
    """The engines that were asked for cannot be run here."""


class EngineCommand(msgspec.Struct, frozen=True):
    """How to start an engine: `env` comes on top of the environment, `limit` is in seconds, `about` is for a person."""

    argv: list[str]
    env: dict[str, str]
    ready_timeout: float
    description: str


def choose_program(plan: UpPlan) -> Program:
    """vLLM where it is installed, else the simulator. Raises NoProgramError where the one asked for is not there."""
    if plan.vllm_python is not None:
        if plan.kind != "simulator" and not Path(plan.vllm_python).is_file():
            raise ProgramNotInstalledError(f"--vllm-python: there is no {plan.vllm_python}")
        there = True
    else:
        there = find_spec("vllm") is not None
    if plan.kind == "vllm" and not there:
        raise ProgramNotInstalledError(
            "vLLM is not installed here; `pip install roundhouse[vllm]`, or `make run ENGINES=vllm`"
        )
    return "vllm" if there and plan.kind != "simulator" else "simulator"


def engine_command(spec: EngineSpec, program: Program, plan: UpPlan) -> EngineCommand:
    """How to start this engine as this program. The spec must have a `launch`."""
    assert spec.launch is not None
    draft = spec.launch.draft
    pair = spec.launch.target + (f" + {draft}" if draft is not None else "")
    if program == "vllm":
        python = plan.vllm_python or sys.executable
        return EngineCommand(
            vllm_argv(spec, python), vllm_env(spec, cpu=not _has_gpu()), _READY_TIMEOUT[program], f"vLLM, {pair}"
        )
    argv = [sys.executable, "-m", "engines.simulator", "--host", spec.host, "--port", str(spec.port)]
    argv += ["--model", spec.launch.target, "--served-model-name", spec.served_model]
    argv += ["--ttft-ms", str(_TTFT_MS), "--tokens-per-second", str(_TOKENS_PER_SECOND)]
    if spec.max_model_len is not None:
        argv += ["--max-model-len", str(spec.max_model_len)]
    if draft is not None:
        argv += ["--draft", draft, "--num-speculative-tokens", str(spec.launch.num_speculative_tokens)]
    return EngineCommand(argv, {}, _READY_TIMEOUT[program], f"simulated, in place of {pair}")


def _has_gpu() -> bool:
    """Whether the kernel shows an NVIDIA or an AMD GPU."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/kfd"))
