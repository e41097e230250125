"""What reads a request: its key, its task and the model that it is for."""

from functools import cache

from router.core.cache.key import ContextMarkers
from router.core.routing.classify import Classifier
from router.flow.request_resolver import RequestResolver
from router.flow.tenant_rules import tenant_rules
from router.settings import Settings
from router.upstream.catalog import Catalog


def build_request_resolver(settings: Settings, catalog: Catalog) -> RequestResolver:
    return RequestResolver(
        catalog=catalog,
        log_odds_of=_classifier().log_odds,
        markers=ContextMarkers(settings.cache.context_open, settings.cache.context_close),
        rules=tenant_rules(settings, catalog),
    )


@cache
def _classifier() -> Classifier:
    """Loaded once: it never changes, and a reload would answer no request in the 30 ms that it takes."""
    return Classifier.load()
