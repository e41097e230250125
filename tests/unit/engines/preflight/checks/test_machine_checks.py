"""The memory of engines on the CPU, the disks, sampling defaults, API keys and the version of vLLM."""

from typing import Any

import pytest

from engines.preflight.checks.api_key import check_api_keys
from engines.preflight.checks.cpu_memory import check_cpu_memory
from engines.preflight.checks.disk import check_disk
from engines.preflight.checks.sampling import check_sampling
from engines.preflight.checks.vllm import check_vllm
from engines.preflight.finding import Finding
from engines.preflight.observations import Disk, EngineFacts, Model
from tests.support.preflight_facts import GIB, make_engine, make_machine, make_model, make_observations


def on_cpu(name: str = "llama", **options: Any) -> EngineFacts:
    return make_engine(name, on_cpu=True, **({"gpus": None, "kv_cache_bytes": 2 * GIB} | options))


def cpu_findings(*engines: EngineFacts, **machine: Any) -> list[Finding]:
    return list(check_cpu_memory(make_observations(*engines, machine=make_machine(**machine))))


def test_engines_that_fit_into_the_machine_are_no_problem() -> None:
    assert cpu_findings(on_cpu("a"), on_cpu("b")) == []


def test_a_request_that_does_not_fit_into_the_kv_cache_is_an_error() -> None:
    (found,) = cpu_findings(on_cpu(kv_cache_bytes=GIB, max_model_len=16_384))
    assert found.severity == "error"
    assert "1.0 GiB has room for 8,192 tokens; one request of 16,384 tokens does not fit" in found.problem
    assert "max_model_len to at most 8192" in found.remedy


def test_on_the_cpu_parallel_processes_do_not_divide_the_memory() -> None:
    (found,) = cpu_findings(on_cpu(tensor_parallel=2), total_memory=16 * GIB)
    assert "weights and KV caches of llama are 17.0 GiB" in found.problem


def test_engines_that_are_too_large_together_are_an_error() -> None:
    (found,) = cpu_findings(on_cpu("a"), on_cpu("b"), total_memory=33 * GIB)
    assert found.severity == "error"
    assert found.problem == "weights and KV caches of a and b are 34.0 GiB, and this machine has 33.0 GiB"


def test_engines_that_are_too_large_for_what_is_free_are_a_warning() -> None:
    (found,) = cpu_findings(on_cpu("a"), on_cpu("b"), available_memory=33 * GIB)
    assert (found.severity, "33.0 GiB are free" in found.problem) == ("warning", True)


def test_engines_for_gpus_are_not_compared_with_the_machine() -> None:
    assert cpu_findings(make_engine(), total_memory=GIB) == []
    assert cpu_findings(on_cpu(gpus=(0,)), total_memory=GIB) == []


ABSENT = Model(name="org/Llama-8B", is_local=False, folder=None)


def disk_findings(*engines: EngineFacts, models: float = 100, logs: float = 100) -> list[Finding]:
    disks = (Disk("models", "/hub", int(models * GIB)), Disk("logs", "/state", int(logs * GIB)))
    return list(check_disk(make_observations(*engines, machine=make_machine(disks=disks))))


def test_room_on_the_disks_is_no_problem() -> None:
    assert disk_findings(make_engine(target=ABSENT)) == []


def test_models_that_do_not_fit_on_the_disk_are_an_error_and_each_counts_once() -> None:
    (found,) = disk_findings(make_engine("a", target=ABSENT), make_engine("b", target=ABSENT), models=10)
    assert found.severity == "error"
    assert found.problem == "10.0 GiB are free for /hub; the models to download have about 14.9 GiB"


def test_nothing_is_needed_for_models_that_are_there_or_offline() -> None:
    assert disk_findings(make_engine(), make_engine(target=ABSENT, is_offline=True), models=0.1) == []


def test_a_nearly_full_disk_is_a_warning_for_models_of_unknown_size() -> None:
    (found,) = disk_findings(make_engine(target=Model(name="org/phi", is_local=False, folder=None)), models=0.5)
    assert found.severity == "warning"


def test_a_disk_that_logs_will_fill_is_a_warning() -> None:
    (found,) = disk_findings(make_engine(), logs=0.5)
    assert (found.severity, "0.5 GiB are free for /state" in found.problem) == ("warning", True)


def sampling_findings(*engines: EngineFacts, elsewhere: tuple[str, ...] = ("llama",)) -> list[Finding]:
    return list(check_sampling(make_observations(*engines, elsewhere=elsewhere)))


def test_a_default_that_speculation_refuses_is_an_error() -> None:
    (found,) = sampling_findings(make_engine(target=make_model(min_p=0.05), draft=make_model("/models/draft")))
    assert (found.severity, found.setting) == ("error", "launch.target")
    assert "generation_config.json sets min_p = 0.05" in found.problem
    assert "--generation-config vllm" in found.remedy


def test_an_option_can_set_or_clear_that_default() -> None:
    draft = make_model("/models/draft")
    assert sampling_findings(make_engine(target=make_model(min_p=0.05), draft=draft, min_p=0.0)) == []
    (found,) = sampling_findings(make_engine(draft=draft, min_p=0.1))
    assert (found.setting, "min_p = 0.1" in found.problem) == ("launch.args", True)


def test_without_speculation_any_default_is_fine() -> None:
    assert sampling_findings(make_engine(target=make_model(min_p=0.05))) == []


def test_a_draft_of_its_own_is_not_needed_to_be_refused() -> None:
    (found,) = sampling_findings(make_engine(target=make_model(min_p=0.05), method="ngram"))
    assert found.severity == "error"


def test_a_model_whose_engines_all_have_a_draft_is_noted() -> None:
    engines = [make_engine(name, draft=make_model("/models/draft")) for name in ("a", "b")]
    (found,) = sampling_findings(*engines, elsewhere=())
    assert (found.severity, found.engine, found.setting) == ("note", None, "model llama")
    assert "every engine (a and b) has a draft" in found.problem
    assert sampling_findings(*engines, make_engine("c"), elsewhere=()) == []
    assert sampling_findings(*engines, elsewhere=("llama",)) == []


def test_a_key_that_the_engine_would_demand_is_an_error() -> None:
    engines = [make_engine("a", api_key="VLLM_API_KEY"), make_engine("b", api_key="--api-key"), make_engine("c")]
    found = list(check_api_keys(make_observations(*engines)))
    assert [(f.severity, f.engine, f.setting) for f in found] == [
        ("error", "a", "VLLM_API_KEY"),
        ("error", "b", "launch.args"),
    ]


def vllm_findings(version: str | None, *engines: EngineFacts) -> list[Finding]:
    return list(check_vllm(make_observations(*engines, machine=make_machine(vllm=version))))


@pytest.mark.parametrize("version", ["0.32.0", "0.32.1rc1+cu130", "1.0", "unknown"])
def test_a_present_vllm_is_no_problem(version: str) -> None:
    assert vllm_findings(version, make_engine()) == []


def test_an_old_vllm_is_a_warning_and_none_an_error() -> None:
    assert [f.severity for f in vllm_findings("0.9.2", make_engine())] == ["warning"]
    assert [f.severity for f in vllm_findings(None, make_engine())] == ["error"]


def test_without_engines_to_start_vllm_is_not_needed() -> None:
    assert vllm_findings(None) == []
