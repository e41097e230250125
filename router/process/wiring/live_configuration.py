"""A configuration that has requests: the one in effect, one that starts, and those that were replaced."""

from typing import NamedTuple

from router.api.access.auth import Authenticator
from router.process.wiring.engine_pool import EnginePool
from router.settings import Settings, tenants


class LiveConfiguration(NamedTuple):
    """What Redis reports is applied to its keys and engines."""

    settings: Settings
    auth: Authenticator
    engines: EnginePool

    @property
    def tenants(self) -> list[str]:
        return tenants(self.settings)

    @property
    def has_stored_keys(self) -> bool:
        return has_stored_keys(self.settings)

    @property
    def publishes_keys(self) -> bool:
        """Whether a revocation waits for this process."""
        return self.has_stored_keys and self.settings.auth_mode == "keys"


def has_stored_keys(settings: Settings) -> bool:
    """Whether keys in Redis make a difference."""
    return settings.auth.mode in (None, "keys")
