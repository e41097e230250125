"""Are there sampling settings that vLLM refuses with speculative decoding?

vLLM refuses min_p and logit_bias then (see router.core.routing.draft_models.draft_stats.unsupported_fields). The router
keeps these fields of a request away from such an engine. But min_p may also be a default of the engine itself.
"""

from collections.abc import Iterator
from typing import Final

from engines.preflight.finding import Finding, error, note
from engines.preflight.observations import EngineFacts, Observations
from engines.preflight.wording import listed

_SAMPLING_EPSILON: Final = 1e-5  # vLLM treats a min_p below it as 0


def check_sampling(observed: Observations) -> Iterator[Finding]:
    for engine in observed.engines:
        if engine.options.method is not None:
            yield from _check_default(engine)
    yield from _check_alternatives(observed)


def _check_default(engine: EngineFacts) -> Iterator[Finding]:
    overriding = engine.options.min_p
    min_p = engine.target.min_p if overriding is None else overriding
    if min_p is None or min_p <= _SAMPLING_EPSILON:
        return
    if overriding is not None:
        setting, remedy = "launch.args", "Remove min_p from --override-generation-config, or remove the draft."
    else:
        setting = "launch.target"
        remedy = "Add `--generation-config vllm` to args, which ignores that file, or remove the draft."
    source = "--override-generation-config" if overriding is not None else "generation_config.json"
    problem = (
        f"{source} sets min_p = {min_p:g} for all requests, which vLLM refuses with speculative decoding: "
        "requests without a min_p of their own fail"
    )
    yield error(engine.name, setting, problem, remedy)


def _check_alternatives(observed: Observations) -> Iterator[Finding]:
    """Of each model, whether an engine without a draft can take the requests that need one."""
    for model in dict.fromkeys(engine.public_model for engine in observed.engines):
        engines = [engine for engine in observed.engines if engine.public_model == model]
        if model not in observed.elsewhere and all(engine.options.method is not None for engine in engines):
            names = listed(engine.name for engine in engines)
            problem = (
                f"every engine ({names}) has a draft, so the router removes min_p and logit_bias from requests "
                "(X-Adjusted)"
            )
            yield note(None, f"model {model}", problem, "If clients need them, add an [[engine]] without a draft.")
