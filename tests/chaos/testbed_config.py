"""The configuration of the chaos test's routers: the defaults, except for what the test needs.

Set are what every deployment must set (addresses, keys, models), the tenants' limits and times to live, and the
engines' `max_in_flight`. The times to live are short, since expiry is part of the test. No timeout, retry, breaker or
drain is set.
"""

from collections.abc import Mapping
from typing import Final

from router.api.access.auth import hash_key
from tests.chaos.workload import ADMIN_KEY, TENANTS, api_key
from tests.support.router_server import LLAMA, MISTRAL

EMBED: Final = "intfloat/e5-simulated"

SERVED_MODELS: Final = {"llama": LLAMA, "mistral": MISTRAL, "embed": EMBED}
"""By the model's name, its name at its engines."""

MODEL_OF: Final = {"llama-chat": "llama", "llama-code": "llama", "mistral": "mistral", "embed": "embed"}
"""By the engine's name."""

MAX_IN_FLIGHT: Final = {"llama-chat": 8, "llama-code": 8}


def testbed_toml(redis_url: str, engines: Mapping[str, str], *, workers: int) -> str:
    """The configuration as TOML. `engines`: addresses by name."""
    tables = [
        f"[router]\nworkers = {workers}",
        f'[cache]\nurl = "{redis_url}"',
        f'[auth]\nmode = "keys"\nadmin_keys = ["{hash_key(ADMIN_KEY.encode())}"]',
    ]
    for name, tenant in TENANTS.items():
        limits = "".join(f"{limit} = {amount}\n" for limit, amount in tenant.limits.items())
        key_hash = hash_key(api_key(name).encode())
        tables.append(f'[[tenant]]\nname = "{name}"\nkeys = ["{key_hash}"]\nttl = "{tenant.ttl}s"\n{limits}')
    for model in SERVED_MODELS:
        auto = 'auto = ["chat", "code"]\n' if model == "llama" else ""
        tables.append(f'[[model]]\nname = "{model}"\nrevision = "1"\n{auto}')
    for name, url in engines.items():
        model = MODEL_OF[name]
        engine_limit = f"max_in_flight = {MAX_IN_FLIGHT[name]}\n" if name in MAX_IN_FLIGHT else ""
        tables.append(
            f'[[engine]]\nname = "{name}"\nmodel = "{model}"\nurl = "{url}"\n'
            f'served_model = "{SERVED_MODELS[model]}"\n{engine_limit}'
        )
    return "\n\n".join(tables)
