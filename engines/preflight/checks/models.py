"""Are the models there, and complete?"""

from collections.abc import Iterator

from engines.preflight.finding import Finding, error, warning
from engines.preflight.memory_estimate import download_bytes
from engines.preflight.observations import EngineFacts, Model, Observations


def check_models(observed: Observations) -> Iterator[Finding]:
    for engine in observed.engines:
        yield from _check_model(engine, "launch.target", engine.target)
        if engine.draft is not None:
            yield from _check_model(engine, "launch.draft", engine.draft)


def _check_model(engine: EngineFacts, setting: str, model: Model) -> Iterator[Finding]:
    if model.folder is None:
        yield _absent(engine, setting, model)
    for damage in model.damage:
        yield error(engine.name, setting, f"{model.folder}: {damage}", _mend_damage(model))


def _absent(engine: EngineFacts, setting: str, model: Model) -> Finding:
    if model.is_local:
        remedy = "Create it (`make models` makes the small ones), or correct the path; it is relative to this folder."
        return error(engine.name, setting, f"there is no folder {model.name}", remedy)
    if engine.options.is_offline:
        problem = f"{model.name!r} is not on this machine, and HF_HUB_OFFLINE=1 forbids to download it"
        remedy = f"Download it first: `hf download {model.name}`."
        return error(engine.name, setting, problem, remedy)
    size = download_bytes(model)
    amount = f"about {size / 1e9:.0f} GB, by its name" if size is not None else "of unknown size"
    problem = f"{model.name!r} is not on this machine; the start of the engine downloads it ({amount})"
    return warning(engine.name, setting, problem, f"Run `hf download {model.name}` first for a faster start.")


def _mend_damage(model: Model) -> str:
    if model.is_local:
        return "Copy or create the model again."
    return f"Download it again: `hf download {model.name}`."
