"""Weights and KV cache against the memory of GPUs. The expected numbers are calculated by hand.

Llama 3.1 8B: 15 GiB of weights in the tests, and 2 * 32 layers * 8 heads * 128 * 2 bytes = 128 KiB per token.
"""

from msgspec.structs import replace

from engines.preflight.checks.memory import check_memory
from engines.preflight.finding import Finding
from engines.preflight.observations import EngineFacts, Gpu, GpuDriver, GpuProcess, ModelShape, Process, Turns
from tests.support.preflight_facts import (
    GIB,
    LLAMA_8B,
    make_engine,
    make_gpu,
    make_machine,
    make_model,
    make_observations,
)


def findings(*engines: EngineFacts, gpus: tuple[Gpu, ...] = (make_gpu(),)) -> list[Finding]:
    return list(check_memory(make_observations(*engines, driver=GpuDriver(kind="nvidia", gpus=gpus))))


def finding(*engines: EngineFacts, gpus: tuple[Gpu, ...] = (make_gpu(),)) -> Finding:
    (found,) = findings(*engines, gpus=gpus)
    return found


def held(free: float, *processes: GpuProcess) -> tuple[Gpu, ...]:
    return (make_gpu(free=free, processes=processes),)


def test_what_is_left_for_the_kv_cache_is_noted() -> None:
    # 24 * 0.92 - 15 - 2 = 5.08 GiB, in tokens of 128 KiB: 41,615.
    found = finding(make_engine())
    assert (found.severity, found.engine, found.setting) == ("note", "llama", "GPU 0")
    assert found.problem == (
        "weights of 15.0 GiB leave 5.1 GiB for the KV cache, 41,615 tokens: 5 requests of 8,192 tokens at once"
    )


def test_room_for_few_requests_is_a_warning() -> None:
    found = finding(make_engine(max_model_len=32_768))
    assert found.severity == "warning"
    assert "1.3 requests of 32,768 tokens at once" in found.problem


def test_a_context_that_does_not_fit_is_an_error_with_the_length_that_does() -> None:
    found = finding(make_engine(max_model_len=None))
    assert found.severity == "error"
    assert "one request of 131,072 tokens does not fit" in found.problem
    assert "Set max_model_len to at most 41472" in found.remedy  # 41,615 rounded down to a multiple of 256


def test_a_quantized_kv_cache_has_room_for_twice_as_many_tokens() -> None:
    assert "83,230 tokens" in finding(make_engine(kv_cache_dtype="fp8")).problem
    remedy = finding(make_engine(kv_cache_dtype="fp8", max_model_len=None)).remedy
    assert remedy == "Set max_model_len to at most 83200."


def test_weights_that_do_not_fit_are_an_error() -> None:
    found = finding(make_engine(target=make_model(weight_bytes=21 * GIB)))
    assert (found.severity, found.problem) == ("error", "weights of 21.0 GiB do not fit into 24.0 GiB")


def test_a_draft_needs_memory_too() -> None:
    draft = make_model("/models/draft", replace(LLAMA_8B, kv_layers=16), weight_bytes=GIB)
    # 4.08 GiB are left, in tokens of 128 + 64 KiB.
    found = finding(make_engine(draft=draft))
    assert "weights of 16.0 GiB leave 4.1 GiB for the KV cache, 22,282 tokens" in found.problem


def test_two_gpus_share_weights_and_heads() -> None:
    # 22.08 - 7.5 - 2 = 12.58 GiB, in tokens of 64 KiB.
    found = finding(make_engine(gpus=(0, 1), tensor_parallel=2), gpus=(make_gpu(0), make_gpu(1)))
    assert "weights of 7.5 GiB leave 12.6 GiB for the KV cache, 206,110 tokens" in found.problem


def test_the_smallest_gpu_of_an_engine_counts() -> None:
    gpus = (make_gpu(0, total=80), make_gpu(1, total=24))
    assert finding(make_engine(gpus=(0, 1), tensor_parallel=2), gpus=gpus).setting == "GPU 1"


def test_a_kv_cache_of_fixed_size_is_judged_by_that_size() -> None:
    assert "the KV cache of 2.0 GiB has room for 16,384 tokens" in finding(make_engine(kv_cache_bytes=2 * GIB)).problem
    too_large = finding(make_engine(kv_cache_bytes=8 * GIB))
    assert too_large.problem == "weights of 15.0 GiB and a KV cache of 8.0 GiB do not fit into 24.0 GiB"


def test_weights_that_are_not_there_are_marked_as_a_guess() -> None:
    absent = make_model("org/Llama-8B", ModelShape(), is_local=False, folder=None, weight_bytes=None)
    assert "weights of 14.9 GiB (a guess: the models are not there) fit" in finding(make_engine(target=absent)).problem


def test_a_guess_that_does_not_fit_is_only_a_warning() -> None:
    absent = make_model("org/Llama-13B", ModelShape(), is_local=False, folder=None, weight_bytes=None)
    assert finding(make_engine(target=absent)).severity == "warning"
    draft = make_model("org/Draft-1B", ModelShape(), is_local=False, folder=None, weight_bytes=None)
    found = finding(make_engine(draft=draft, max_model_len=None))
    assert (found.severity, "does not fit" in found.problem) == ("warning", True)


def test_without_any_size_nothing_is_estimated() -> None:
    unknown = make_model("org/phi", ModelShape(), is_local=False, folder=None, weight_bytes=None)
    found = finding(make_engine(target=unknown))
    assert found.severity == "note"
    assert "memory was not estimated" in found.problem


def test_memory_that_a_dead_engine_holds_is_an_error_that_names_it() -> None:
    dead = GpuProcess(Process(4980, "VLLM::EngineCore", is_orphan=True), 20 * GIB)
    found = findings(make_engine(), gpus=held(3.5, dead))[0]
    assert (found.severity, found.setting) == ("error", "GPU 0")
    assert "3.5 GiB of 24.0 GiB are free, and the engine wants 22.1 GiB" in found.problem
    assert "Held by process 4980 (VLLM::EngineCore) with 20.0 GiB" in found.problem
    assert "`kill -9 4980`" in found.remedy


def test_a_process_that_is_no_dead_engine_is_not_to_be_killed() -> None:
    living = GpuProcess(Process(50, "VLLM::EngineCore"), None)
    other = GpuProcess(Process(51, "python train.py", is_orphan=True), GIB)
    for holder in (living, other):
        assert "kill -9" not in findings(make_engine(), gpus=held(3.5, holder))[0].remedy


def test_a_share_that_would_fit_is_suggested_and_no_other() -> None:
    assert "`--gpu-memory-utilization 0.83`" in findings(make_engine(), gpus=held(20))[0].remedy
    assert "--gpu-memory-utilization" not in findings(make_engine(), gpus=held(16))[0].remedy


def test_engines_that_together_want_more_than_a_gpu_has_are_an_error() -> None:
    small = make_model(weight_bytes=4 * GIB)
    engines = [make_engine(name, target=small, memory_utilization=0.6) for name in ("a", "b")]
    found = findings(*engines)[-1]
    assert (found.severity, found.engine, found.setting) == ("error", None, "GPU 0")
    assert found.problem == "a and b together want 28.8 GiB of its 24.0 GiB"
    assert "`--gpu-memory-utilization 0.46`" in found.remedy
    assert all(f.severity != "error" for f in findings(*[replace_share(engine, 0.45) for engine in engines]))


def replace_share(engine: EngineFacts, share: float) -> EngineFacts:
    return replace(engine, options=replace(engine.options, memory_utilization=share))


def test_engines_with_a_kv_cache_of_fixed_size_share_by_what_they_hold() -> None:
    small = make_model(weight_bytes=4 * GIB)
    fitting = [make_engine(name, target=small, kv_cache_bytes=5 * GIB) for name in ("a", "b")]
    assert all(f.severity != "error" for f in findings(*fitting))
    found = findings(*[make_engine(name, target=small, kv_cache_bytes=7 * GIB) for name in ("a", "b")])[-1]
    assert found.problem == "a and b together want 26.0 GiB of its 24.0 GiB"


def test_an_engine_that_alone_does_not_fit_is_not_reported_as_sharing() -> None:
    assert len(findings(make_engine(kv_cache_bytes=8 * GIB))) == 1


def test_a_kv_cache_of_fixed_size_does_not_reduce_what_must_be_free_at_the_start() -> None:
    found = findings(make_engine(kv_cache_bytes=GIB), gpus=held(20))[0]
    assert "the engine wants 22.1 GiB" in found.problem


def test_engines_on_different_gpus_do_not_share() -> None:
    found = findings(make_engine("a"), make_engine("b", gpus=(1,)), gpus=(make_gpu(0), make_gpu(1)))
    assert [finding.severity for finding in found] == ["note", "note"]


def test_engines_on_the_cpu_are_not_compared_with_gpus() -> None:
    assert findings(make_engine(on_cpu=True, gpus=None)) == []


def test_without_known_gpus_nothing_is_said() -> None:
    assert findings(make_engine(), gpus=()) == []


def taking_turns(name: str, memory: int | None = None, most: int | None = 1, **turns: bool) -> EngineFacts:
    return replace(make_engine(name), turns=Turns(gpu="gpu0", most_awake=most, memory=memory, **turns))


def errors(*engines: EngineFacts, total_memory: int = 64 * GIB) -> list[str]:
    driver = GpuDriver(kind="nvidia", gpus=(make_gpu(),))
    machine = make_machine(total_memory=total_memory)
    found = check_memory(make_observations(*engines, driver=driver, machine=machine))
    return [each.problem for each in found if each.severity == "error"]


def test_engines_that_take_turns_need_the_memory_of_those_that_are_awake() -> None:
    three = [taking_turns(name) for name in "abc"]
    assert errors(*three) == []
    assert errors(*(taking_turns(name, most=2) for name in "abc")) == [
        "a, b and c together want 44.2 GiB of its 24.0 GiB"
    ]
    assert errors(*three, make_engine("d")) == ["a, b, c and d together want 44.2 GiB of its 24.0 GiB"]


def test_what_an_engine_is_said_to_need_is_compared_with_what_it_takes() -> None:
    assert errors(taking_turns("a", 23 * GIB, None), taking_turns("b", 23 * GIB, None)) == []
    assert errors(taking_turns("a", 14 * GIB, None)) == [
        "it is 14.0 GiB, and the engine wants 22.1 GiB of GPU 0"
    ]  # fmt: skip


def test_the_weights_of_engines_that_sleep_must_fit_into_the_memory_of_the_machine() -> None:
    three = [taking_turns(name) for name in "abc"]
    assert errors(*three, total_memory=32 * GIB) == [
        "the weights of the engines that sleep need 45.0 GiB of the machine's 32.0 GiB"
    ]
    assert errors(*(taking_turns(name, keeps_weights=False) for name in "abc"), total_memory=32 * GIB) == []
