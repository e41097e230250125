"""Does an engine demand an API key? The router sends none, and /health needs none, so the engine would look healthy."""

from collections.abc import Iterator

from engines.preflight.finding import Finding, error
from engines.preflight.observations import Observations


def check_api_keys(observed: Observations) -> Iterator[Finding]:
    for engine in observed.engines:
        if engine.options.api_key == "VLLM_API_KEY":
            problem = "is set, so the engine refuses requests without that key (401), and the router sends no key"
            remedy = "Unset it in the environment of `roundhouse up` and in [engine.launch] env."
            yield error(engine.name, "VLLM_API_KEY", problem, remedy)
        elif engine.options.api_key is not None:
            problem = "--api-key makes the engine refuse requests without that key (401), and the router sends no key"
            yield error(
                engine.name, "launch.args", problem, "Remove --api-key, and keep the engine on its own network."
            )
