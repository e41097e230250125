"""Models that are not there, or not complete."""

from engines.preflight.checks.models import check_models
from engines.preflight.finding import Finding
from engines.preflight.observations import Model
from tests.support.preflight_facts import make_engine, make_model, make_observations


def findings(target: Model, draft: Model | None = None, *, is_offline: bool = False) -> list[Finding]:
    return list(check_models(make_observations(make_engine(target=target, draft=draft, is_offline=is_offline))))


def absent(name: str) -> Model:
    return Model(name=name, is_local=name.startswith("/"), folder=None)


def test_complete_models_are_no_problem() -> None:
    assert findings(make_model(), make_model("/models/draft")) == []


def test_a_folder_that_is_not_there_is_an_error() -> None:
    (found,) = findings(absent("/models/llama"))
    assert (found.severity, found.setting, found.problem) == (
        "error",
        "launch.target",
        "there is no folder /models/llama",
    )


def test_a_model_that_would_be_downloaded_is_a_warning_with_its_size() -> None:
    (found,) = findings(make_model(), absent("Qwen/Qwen2.5-7B-Instruct"))
    assert (found.severity, found.setting) == ("warning", "launch.draft")
    assert "downloads it (about 14 GB, by its name)" in found.problem
    assert "`hf download Qwen/Qwen2.5-7B-Instruct`" in found.remedy


def test_a_size_that_the_name_does_not_tell_is_said_to_be_unknown() -> None:
    (found,) = findings(absent("microsoft/phi-4"))
    assert "of unknown size" in found.problem


def test_offline_a_model_that_is_not_there_is_an_error() -> None:
    (found,) = findings(absent("Qwen/Qwen2.5-7B"), is_offline=True)
    assert found.severity == "error"
    assert "HF_HUB_OFFLINE=1" in found.problem


def test_every_damage_of_a_model_is_an_error_of_its_own() -> None:
    found = findings(make_model(damage=("config.json is missing", "model.safetensors is cut off")))
    assert [finding.severity for finding in found] == ["error", "error"]
    assert found[0].problem == "/models/llama: config.json is missing"


def test_a_damaged_model_of_the_hub_is_to_be_downloaded_again() -> None:
    (found,) = findings(make_model("org/Llama-8B", is_local=False, damage=("no weights",)))
    assert "`hf download org/Llama-8B`" in found.remedy
