"""The settings of `roundhouse serve --engine URL`, without a file."""

from collections.abc import Callable, Mapping

from router.discovery.ask import wait_for_engines
from router.discovery.configuration_text import DEFAULT_REDIS, configuration_text
from router.discovery.plan import plan
from router.settings import Settings, parse
from router.settings.serve_options import ServeOptions


class DiscoveryError(Exception):
    """The engines do not say what they serve; `lines` for a person."""

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


async def settings_of_engines(
    options: ServeOptions, environment: Mapping[str, str], report: Callable[[str], None]
) -> Settings:
    """Asks the engines which models they serve, and waits until they are up.

    The options and the environment replace settings, as those of a file. `report` gets lines for a person. Raises
    DiscoveryError and ConfigurationError.
    """
    key = environment.get(options.api_key_env or "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answers = await wait_for_engines(options.engine, headers, seconds=options.wait, report=report)
    found = plan(answers, options.model)
    if found.unknown:
        hint = "" if key else "; see --api-key-env"
        raise DiscoveryError(
            *[
                f"the engine at {answer.url}: {answer.problem}{hint if answer.wants_key else ''}"
                for answer in found.unknown
            ]
        )
    if not found.models:
        raise DiscoveryError(*(found.notes or ("the engines serve no model",)))
    for note in found.notes:
        report(note)
    text = configuration_text(found, redis_url=DEFAULT_REDIS, api_key_variable=options.api_key_env if key else None)
    return parse(text, environment, options.overrides)
