"""The engines of a plan: what each would be started with, and its models."""

from collections.abc import Mapping
from pathlib import Path

from engines.launcher import engine_command
from engines.plan import UpPlan
from engines.preflight.gather.model_folder import hub_cache
from engines.preflight.gather.models import read_model
from engines.preflight.launch_options import LaunchOptions, launch_options
from engines.preflight.observations import EngineFacts, Model, Turns
from engines.spec import EngineSpec
from engines.vllm_command import is_local_model


def read_engine(spec: EngineSpec, plan: UpPlan, environment: Mapping[str, str]) -> EngineFacts:
    """The spec must have a `launch`. `environment` is that of `roundhouse up`, which engines inherit."""
    assert spec.launch is not None
    options = read_options(spec, plan, environment)
    cache = hub_cache({**environment, **engine_command(spec, "vllm", plan).env})
    return EngineFacts(
        name=spec.name,
        public_model=spec.model,
        configured_gpus=tuple(spec.launch.gpus),
        options=options,
        target=_read(options.target, options, options.revision, cache),
        draft=None if options.draft is None else _read(options.draft, options, None, cache),
        turns=_turns(spec, plan),
    )


def _turns(spec: EngineSpec, plan: UpPlan) -> Turns | None:
    gpu = next((gpu for gpu in plan.gpus if spec.name in gpu.engines), None)
    if gpu is None:
        return None
    need = gpu.engines[spec.name]
    return Turns(
        gpu=gpu.name,
        most_awake=None if gpu.by_memory else int(gpu.capacity),
        memory=int(need) if gpu.by_memory else None,
        keeps_weights=spec.sleep == "vllm" and spec.sleep_level == 1,
    )


def read_options(spec: EngineSpec, plan: UpPlan, environment: Mapping[str, str]) -> LaunchOptions:
    """What vLLM would be started with."""
    command = engine_command(spec, "vllm", plan)
    env = {**environment, **command.env}
    # An empty list hides all GPUs; engines.vllm_command sets it for vLLM's CPU build.
    return launch_options(command.argv, env, on_cpu=env.get("CUDA_VISIBLE_DEVICES") == "")


def _read(name: str, options: LaunchOptions, revision: str | None, cache: Path) -> Model:
    return read_model(
        name, is_local=is_local_model(name), revision=revision, cache=cache, generation_config=options.generation_config
    )
