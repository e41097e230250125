"""Do weights and KV cache fit into the memory of the GPUs? Estimates: see engines.preflight.memory_estimate."""

import math
from collections.abc import Iterator, Sequence
from typing import Final

from engines.preflight.checks.drafts import served_context
from engines.preflight.finding import Finding, error, note, warning
from engines.preflight.memory_estimate import RUNTIME_BYTES, MemoryEstimate, estimate_memory
from engines.preflight.observations import EngineFacts, Gpu, Observations
from engines.preflight.wording import gib, listed, process_name

FEW_REQUESTS: Final = 4
"""An engine that has room for fewer requests of full length at once is reported: they wait for each other."""

_STEP: Final = 256
"""Suggested context lengths are multiples of it."""


def check_memory(observed: Observations) -> Iterator[Finding]:
    for engine in observed.engines:
        if not engine.options.on_cpu:
            for gpu in _gpus_of(engine, observed):
                yield from _check_free(engine, gpu)
            if gpus := _gpus_of(engine, observed):
                yield from _check_fit(engine, min(gpus, key=lambda gpu: gpu.total))
    yield from _check_sharing(observed)
    yield from _check_turns(observed)


def _gpus_of(engine: EngineFacts, observed: Observations) -> list[Gpu]:
    """The GPUs that the engine uses: its own, or without any configured, the first ones."""
    indices = engine.options.gpus
    if indices is None:
        return list(observed.driver.gpus[: engine.options.gpu_count])
    return [gpu for gpu in observed.driver.gpus if gpu.index in indices[: engine.options.gpu_count]]


def _budget(engine: EngineFacts, gpu: Gpu) -> int:
    """The bytes of a GPU that must be free when the engine starts."""
    return math.ceil(gpu.total * engine.options.memory_utilization)


def _claim(engine: EngineFacts, gpu: Gpu) -> int:
    """The bytes that the engine holds while it runs: its KV cache fills the budget, unless it has a fixed size."""
    fixed, weights = engine.options.kv_cache_bytes, estimate_memory(engine).weights
    return _budget(engine, gpu) if fixed is None or weights is None else weights + RUNTIME_BYTES + fixed


def _check_free(engine: EngineFacts, gpu: Gpu) -> Iterator[Finding]:
    wanted = _budget(engine, gpu)
    if gpu.free >= wanted:  # vLLM checks this at the start, even for a KV cache of fixed size
        return
    problem = (
        f"{gib(gpu.free)} of {gib(gpu.total)} are free, and the engine wants {gib(wanted)} "
        f"(--gpu-memory-utilization {engine.options.memory_utilization:g}); vLLM refuses to start"
    )
    holders = [f"{process_name(one.process)}{_held(one.memory)}" for one in gpu.processes]
    if holders:
        problem += f". Held by {listed(holders)}"
    yield error(engine.name, f"GPU {gpu.index}", problem, _mend_held(engine, gpu))


def _held(memory: int | None) -> str:
    return "" if memory is None else f" with {gib(memory)}"


def _mend_held(engine: EngineFacts, gpu: Gpu) -> str:
    dead = [str(one.process.pid) for one in gpu.processes if one.process.is_orphan and one.process.is_vllm]
    if dead:
        return f"Kill what a dead engine has left: `kill -9 {' '.join(dead)}`."
    find = (
        "Stop what holds the memory" if gpu.processes else "Find what holds the memory with `nvidia-smi`, and stop it"
    )
    share = math.floor(100 * gpu.free / gpu.total) / 100
    if share * gpu.total < (estimate_memory(engine).weights or 0) + RUNTIME_BYTES:
        return f"{find}."
    return f"{find}, or add `--gpu-memory-utilization {share:g}` to args."


def _check_fit(engine: EngineFacts, gpu: Gpu) -> Iterator[Finding]:
    estimate, place = estimate_memory(engine), f"GPU {gpu.index}"
    if estimate.weights is None:
        yield note(engine.name, place, "the size of the weights is unknown, so memory was not estimated")
        return
    guess = " (a guess: the models are not there)" if estimate.is_guess else ""
    # A KV cache of fixed size is claimed in addition to the weights, whatever share of the GPU that is.
    fixed = engine.options.kv_cache_bytes
    left = (gpu.total if fixed is not None else _budget(engine, gpu)) - estimate.weights - RUNTIME_BYTES
    if left < (fixed or 1):
        what = "" if fixed is None else f" and a KV cache of {gib(fixed)}"
        problem = f"weights of {gib(estimate.weights)}{guess}{what} do not fit into {gib(gpu.total)}"
        remedy = "Use more GPUs for the engine (gpus), a quantized model, or a smaller one."
        yield _misfit(engine, place, problem, remedy, estimate)
        return
    yield from _check_context(engine, place, estimate, fixed or left, guess)


def _check_context(
    engine: EngineFacts, place: str, estimate: MemoryEstimate, kv_bytes: int, guess: str
) -> Iterator[Finding]:
    context = served_context(engine)
    if not estimate.kv_per_token or context is None:
        yield note(engine.name, place, f"weights of {gib(estimate.weights or 0)}{guess} fit; the KV cache is unknown")
        return
    tokens = kv_bytes // estimate.kv_per_token
    summary = (
        f"weights of {gib(estimate.weights or 0)}{guess} leave {gib(kv_bytes)} for the KV cache, {tokens:,} tokens"
        if engine.options.kv_cache_bytes is None
        else f"the KV cache of {gib(kv_bytes)} has room for {tokens:,} tokens"
    )
    if tokens < context:
        problem = f"{summary}; one request of {context:,} tokens does not fit, and vLLM refuses to start"
        yield _misfit(engine, place, problem, mend_context(engine, tokens), estimate)
    elif tokens < FEW_REQUESTS * context:
        problem = f"{summary}: {tokens / context:.1f} requests of {context:,} tokens at once; further ones wait"
        yield warning(engine.name, place, problem, "Reduce max_model_len to what clients need, or use more GPUs.")
    else:
        yield note(engine.name, place, f"{summary}: {tokens / context:.0f} requests of {context:,} tokens at once")


def _misfit(engine: EngineFacts, place: str, problem: str, remedy: str, estimate: MemoryEstimate) -> Finding:
    """A guess is no reason to fail."""
    make = warning if estimate.is_guess else error
    return make(engine.name, place, problem, remedy)


def mend_context(engine: EngineFacts, tokens: int) -> str:
    """`tokens` is what the KV cache has room for."""
    fitting = tokens // _STEP * _STEP
    remedy = f"Set max_model_len to at most {fitting}" if fitting else "Give the engine more memory"
    return (
        f"{remedy}, or add `--kv-cache-dtype fp8` to args." if engine.options.kv_cache_dtype == "auto" else f"{remedy}."
    )


def _claimed_together(sharing: Sequence[EngineFacts], gpu: Gpu) -> int:
    """The most that these engines hold at once: of those that take turns, as many as may be awake."""
    claims = [_claim(engine, gpu) for engine in sharing if engine.turns is None]
    groups: dict[str, list[EngineFacts]] = {}
    for engine in sharing:
        if engine.turns is not None:
            groups.setdefault(engine.turns.gpu, []).append(engine)
    for members in groups.values():
        assert members[0].turns is not None
        most = members[0].turns.most_awake
        # By memory, any of them may be awake alone; whether more fit is up to what the configuration says.
        claims += sorted((_claim(engine, gpu) for engine in members), reverse=True)[: 1 if most is None else most]
    return sum(claims)


def _check_turns(observed: Observations) -> Iterator[Finding]:
    """What the configuration says of engines that take turns."""
    kept = 0
    for engine in observed.engines:
        if engine.turns is None or engine.options.on_cpu:
            continue
        if engine.turns.keeps_weights:
            kept += estimate_memory(engine).weights or 0
        for gpu in _gpus_of(engine, observed)[:1]:
            wanted = _claim(engine, gpu)
            if engine.turns.memory is not None and wanted > engine.turns.memory:
                problem = f"it is {gib(engine.turns.memory)}, and the engine wants {gib(wanted)} of GPU {gpu.index}"
                share = math.floor(100 * engine.turns.memory / gpu.total) / 100
                remedy = f"Raise it, or add `--gpu-memory-utilization {share:g}` to args."
                yield error(engine.name, "gpu_memory", problem, remedy)
    memory = observed.machine.total_memory
    if memory is not None and kept > memory:
        problem = f"the weights of the engines that sleep need {gib(kept)} of the machine's {gib(memory)}"
        yield error(None, "sleep_level", problem, 'Set sleep_level = 2, or sleep = "process", for some of them.')


def _check_sharing(observed: Observations) -> Iterator[Finding]:
    for gpu in observed.driver.gpus:
        sharing = [e for e in observed.engines if not e.options.on_cpu and gpu in _gpus_of(e, observed)]
        claimed = _claimed_together(sharing, gpu)
        if len(sharing) > 1 and claimed > gpu.total:  # one alone is reported by _check_fit
            names = listed(engine.name for engine in sharing)
            problem = f"{names} together want {gib(claimed)} of its {gib(gpu.total)}"
            share = math.floor(92 / len(sharing)) / 100
            remedy = f"Give them different gpus, or add `--gpu-memory-utilization {share:g}` to the args of each."
            yield error(None, f"GPU {gpu.index}", problem, remedy)
