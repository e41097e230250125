"""What each tenant may do: the models that it may use, the fields that it may send, the priority of its requests."""

from collections.abc import Collection, Mapping, Sequence

from router.core.endpoints.engine_fields import engine_field_error
from router.core.quota.model_access import ModelAccess
from router.core.quota.priority import PriorityRule, priority_rule
from router.settings import Settings
from router.upstream.catalog import Catalog, Model


class TenantRules:
    """The rules of all tenants; a tenant without one of them may use all models, or has the default priority.

    `access`: by tenant, the models that it may use.
    """

    __slots__ = ("_catalog", "_default_priority", "_priorities", "_transferring", "access")

    def __init__(
        self, catalog: Catalog, access: Mapping[str, ModelAccess], priorities: Mapping[str, PriorityRule],
        transferring: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`transferring`: the tenants that may send fields which reach an engine's memory, see engine_fields."""
        self._catalog = catalog
        self.access = access
        self._priorities = dict(priorities)
        self._default_priority = PriorityRule()
        self._transferring = frozenset(transferring)

    def check_engine_field(self, tenant: str, field: str) -> None:
        """Raises ApiError (400) if the tenant may not send `field`, which find_engine_field has found."""
        if tenant not in self._transferring:
            raise engine_field_error(field)

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
