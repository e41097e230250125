"""Observations for tests of `roundhouse engines preflight`: a good machine, of which each test changes something."""

from typing import Any, Final

from engines.preflight.launch_options import LaunchOptions
from engines.preflight.observations import (
    EngineFacts,
    Gpu,
    GpuDriver,
    GpuProcess,
    Machine,
    Model,
    ModelShape,
    Observations,
    Port,
    Process,
)

GIB: Final = 1 << 30
TOKENS: Final = {"a": 0, "b": 1, "\u0120c": 2, "d": 3}

LLAMA_8B: Final = ModelShape(
    vocab_size=128_256, context=131_072, layers=32, kv_layers=32, attention_heads=32, kv_heads=8,
    kv_values_per_token=2 * 8 * 128, parameter_bytes=2.0,
)  # fmt: skip
QWEN_HALF_B: Final = ModelShape(
    vocab_size=151_936, context=32_768, layers=24, kv_layers=24, attention_heads=14, kv_heads=2,
    kv_values_per_token=2 * 2 * 64, parameter_bytes=2.0,
)  # fmt: skip


def make_model(name: str = "/models/llama", shape: ModelShape = LLAMA_8B, **fields: Any) -> Model:
    """A complete local model of 15 GiB."""
    given: dict[str, Any] = {
        "is_local": name.startswith("/"),
        "folder": name,
        "weight_bytes": 15 * GIB,
        "tokens": TOKENS,
    } | fields
    return Model(name=name, shape=shape, **given)


def make_engine(
    name: str = "llama", *, target: Model | None = None, draft: Model | None = None, **options: Any
) -> EngineFacts:
    """An engine that serves a context of 8,192 tokens on GPU 0."""
    target = make_model() if target is None else target
    given: dict[str, Any] = {"target": target.name, "max_model_len": 8192, "gpus": (0,)} | options
    if draft is not None:
        given = {"draft": draft.name, "method": "draft_model"} | given
    return EngineFacts(
        name=name, public_model="llama", options=LaunchOptions(**given), target=target, draft=draft,
        configured_gpus=given["gpus"] or (),
    )  # fmt: skip


def make_gpu(
    index: int = 0, *, total: float = 24, free: float | None = None, processes: tuple[GpuProcess, ...] = ()
) -> Gpu:
    """Sizes in GiB."""
    free = total - 0.5 if free is None else free
    return Gpu(index=index, name="NVIDIA L4", total=int(total * GIB), free=int(free * GIB), processes=processes)


def make_observations(*engines: EngineFacts, **fields: Any) -> Observations:
    """A machine with an NVIDIA GPU of 24 GiB, vLLM and room for everything."""
    driver = GpuDriver(kind="nvidia", version="580.95.05", cuda=(13, 0), gpus=(make_gpu(),))
    given: dict[str, Any] = {"driver": driver, "machine": make_machine()} | fields
    return Observations(engines=engines, **given)


def make_machine(**fields: Any) -> Machine:
    given: dict[str, Any] = {
        "vllm": "0.32.0", "total_memory": 64 * GIB, "available_memory": 60 * GIB, "shared_memory": 16 * GIB,
    } | fields  # fmt: skip
    return Machine(**given)


def broken_machine() -> Observations:
    """The machine of the example in docs/running-engines.md: one thing of each kind is wrong."""
    api_server = Process(4711, "python -m vllm.entrypoints.openai.api_server")
    engine_core = GpuProcess(Process(4980, "VLLM::EngineCore", is_orphan=True), 20 * GIB)
    target = make_model("meta-llama/Llama-3.1-8B-Instruct")
    chat_draft = make_model(
        "Qwen/Qwen2.5-0.5B-Instruct", QWEN_HALF_B, weight_bytes=GIB, tokens={"a": 0, "b": 1, "\u0120c": 3, "\u0120e": 2}
    )
    code_draft = Model(name="Qwen/Qwen2.5-Coder-0.5B-Instruct", is_local=False, folder=None)
    return make_observations(
        make_engine("llama-chat", target=target, draft=chat_draft, heterogeneous_vocab=True, api_key="VLLM_API_KEY"),
        make_engine(
            "llama-code",
            target=target,
            draft=code_draft,
            heterogeneous_vocab=True,
            gpus=(1,),
            is_offline=True,
        ),
        ports=(
            Port(engine=None, host="127.0.0.1", port=8080),
            Port(
                engine="llama-chat",
                host="127.0.0.1",
                port=8001,
                failure="in use",
                owners=(api_server,),
                is_healthy=False,
            ),
            Port(engine="llama-code", host="127.0.0.1", port=8002),
        ),
        driver=GpuDriver(
            kind="nvidia", version="570.86.15", cuda=(12, 8), gpus=(make_gpu(free=3.4, processes=(engine_core,)),)
        ),
    )
