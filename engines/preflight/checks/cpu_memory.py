"""Do the engines on vLLM's CPU build fit into the memory of the machine? There, the KV cache has a fixed size."""

from collections.abc import Iterator

from engines.preflight.checks.drafts import served_context
from engines.preflight.checks.memory import mend_context
from engines.preflight.finding import Finding, error, warning
from engines.preflight.memory_estimate import MemoryEstimate, estimate_memory
from engines.preflight.observations import EngineFacts, Observations
from engines.preflight.wording import gib, listed


def check_cpu_memory(observed: Observations) -> Iterator[Finding]:
    # An engine that is configured for GPUs runs on the CPU only for want of them, which is reported elsewhere.
    engines = [engine for engine in observed.engines if engine.options.on_cpu and not engine.configured_gpus]
    estimates = [estimate_memory(engine) for engine in engines]
    for engine, estimate in zip(engines, estimates, strict=True):
        yield from _check_context(engine, estimate)
    if engines:
        yield from _check_total(engines, estimates, observed)


def _check_context(engine: EngineFacts, estimate: MemoryEstimate) -> Iterator[Finding]:
    context, kv_bytes = served_context(engine), engine.options.kv_cache_bytes
    if context is None or kv_bytes is None or not estimate.kv_per_token:
        return
    tokens = kv_bytes // estimate.kv_per_token
    if tokens < context:
        problem = (
            f"the KV cache of {gib(kv_bytes)} has room for {tokens:,} tokens; "
            f"one request of {context:,} tokens does not fit, and vLLM refuses to start"
        )
        yield error(engine.name, "memory", problem, mend_context(engine, tokens))


def _check_total(
    engines: list[EngineFacts], estimates: list[MemoryEstimate], observed: Observations
) -> Iterator[Finding]:
    total, available = observed.machine.total_memory, observed.machine.available_memory
    wanted = sum(
        (one.weights or 0) + (e.options.kv_cache_bytes or 0) for e, one in zip(engines, estimates, strict=True)
    )
    problem = f"weights and KV caches of {listed(engine.name for engine in engines)} are {gib(wanted)}"
    remedy = "Use fewer engines, smaller models, or a smaller `--kv-cache-memory-bytes` in args."
    if total is not None and wanted > total:
        yield error(None, "memory", f"{problem}, and this machine has {gib(total)}", remedy)
    elif available is not None and wanted > available:
        yield warning(None, "memory", f"{problem}, and {gib(available)} are free", remedy)
