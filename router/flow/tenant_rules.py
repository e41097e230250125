"""What each tenant may do: the models that it may use, the fields that it may send, the priority of its requests."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from router.core.endpoints.requests.cache_salt import derive_salts
from router.core.endpoints.requests.engine_fields import cached_media_error, engine_field_error, names_cached_media
from router.core.quota.model_access import ModelAccess
from router.core.quota.priority import PriorityRule, priority_rule
from router.settings import Settings, groups
from router.upstream.catalog import Catalog, Model


class TenantRules:
    """The rules of all tenants; a tenant without one of them may use all models, or has the default priority.

    - `access`: by tenant, the models that it may use.
    - `max_ttft`: by tenant, the seconds in which an answer must be expected to begin.
    """

    __slots__ = ("_are_isolated", "_catalog", "_default_priority", "_priorities", "_transferring", "access", "max_ttft")

    def __init__(
        self, catalog: Catalog, access: Mapping[str, ModelAccess], priorities: Mapping[str, PriorityRule],
        transferring: Collection[str] = (), *, are_isolated: bool = False,
        max_ttft: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`transferring`: the tenants that may send fields which reach an engine's memory, see engine_fields.

        `are_isolated`: engines are shared by tenants that must not see each other's prompts.
        """
        self._are_isolated = are_isolated
        self._catalog = catalog
        self.access = access
        self._priorities = dict(priorities)
        self._default_priority = PriorityRule()
        self._transferring = frozenset(transferring)
        self.max_ttft = max_ttft

    def check_engine_field(self, tenant: str, field: str) -> None:
        """Raises ApiError (400) if the tenant may not send `field`, which find_engine_field has found."""
        if tenant not in self._transferring:
            raise engine_field_error(field)

    def check_media(self, tenant: str, fields: Mapping[str, Any]) -> None:
        """Raises ApiError (400) if a part of the content names media of the engine that other tenants may have sent.

        To be asked for requests with other parts than text.
        """
        if self._are_isolated and tenant not in self._transferring and names_cached_media(fields):
            raise cached_media_error()

    def allows(self, tenant: str, model: Model) -> bool:
        access = self.access.get(tenant)
        return access is None or access.allows(model.public_name, model.aliases)

    def allowed_models(self, tenant: str, models: Sequence[str]) -> Sequence[str]:
        """Of the models that may generate a response, by name, those that the tenant may use.

        An adapter is kept: it has no fallbacks, so it is the requested model, whose access has been checked.
        """
        if tenant not in self.access:
            return models
        configured = ((name, self._catalog.resolve_configured(name)) for name in models)
        return [name for name, model in configured if model is None or self.allows(tenant, model)]

    def priority(self, tenant: str, requested: int | None) -> int:
        return self._priorities.get(tenant, self._default_priority).apply(requested)


def tenant_rules(settings: Settings, catalog: Catalog) -> TenantRules:
    return TenantRules(
        catalog,
        {tenant.name: ModelAccess(tenant.models) for tenant in settings.tenant if tenant.models is not None},
        {
            tenant.name: priority_rule(tenant.highest_priority, tenant.priority)
            for tenant in settings.tenant
            if tenant.highest_priority is not None or tenant.priority is not None
        },
        [tenant.name for tenant in settings.tenant if tenant.kv_transfer],
        are_isolated=bool(derive_salts(groups(settings))),
        max_ttft={tenant.name: tenant.max_ttft for tenant in settings.tenant if tenant.max_ttft is not None},
    )


def unmatched_models(settings: Settings) -> list[str]:
    """A line for each entry of a tenant's `models` that matches no model of the configuration.

    That is no mistake: the adapters of engines come and go.
    """
    names = [name for model in settings.model for name in (model.name, *model.aliases)]
    return [
        f"tenant {tenant.name}: models: {entry!r} matches no configured model"
        for tenant in settings.tenant
        for entry in ModelAccess(tenant.models or ()).unmatched(names)
    ]
