"""Rules for what a tenant may do: its models and its priorities."""

from collections.abc import Iterator
from typing import Final

from router.settings.mistakes import Mistake, Place
from router.settings.tables import TenantSettings

_MAX_MODELS: Final = 1000
_NOTHING: Final = "must be greater than 0"


def broken_tenant(place: Place, tenant: TenantSettings) -> Iterator[Mistake]:
    """The violations in one tenant's settings."""
    if tenant.models == []:
        # Other routers take an empty list for all models; here, a template that filled in nothing would lock it out.
        message = "is empty, so the tenant could use no model; leave it out to allow all, or name one"
        yield Mistake((*place, "models"), message, of_value=False)
    if tenant.models is not None and len(tenant.models) > _MAX_MODELS:
        yield Mistake((*place, "models"), f"must have at most {_MAX_MODELS} entries", of_value=False)
    if tenant.max_ttft is not None and tenant.max_ttft <= 0:
        yield Mistake((*place, "max_ttft"), _NOTHING)
    highest = tenant.highest_priority if tenant.highest_priority is not None else 0
    if tenant.priority is not None and tenant.priority < highest:
        bound: Place = (*place, "highest_priority")
        message = f"is a higher priority than highest_priority allows, which is {highest}; lower numbers come first"
        yield Mistake((*place, "priority"), message, reads=(bound,))
