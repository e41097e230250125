"""The first steps of every request: parse the body, resolve the model, derive the cache key."""

from collections.abc import Callable, Mapping

import msgspec

from router.core.cache.cache_control import NO_DIRECTIVES, CacheControl
from router.core.cache.key import ContextMarkers
from router.core.cache.key_derivation import derive_cache_key, split_parts
from router.core.endpoints.endpoint import Endpoint
from router.core.endpoints.requests.engine_fields import find_engine_field, has_engine_field
from router.core.endpoints.requests.request import parse_request, with_fields_once
from router.core.endpoints.requests.upload import parse_upload
from router.core.routing.classify import task_for
from router.core.routing.session import Session
from router.core.routing.traffic_share import request_point
from router.core.types import AUTO
from router.errors import unknown_model
from router.flow.attempts.cohorts import pick_cohort
from router.flow.parsed_request import ParsedRequest
from router.flow.tenant_rules import TenantRules
from router.upstream.catalog import Catalog


class RequestResolver:
    """Parses requests and resolves their models. It does no I/O, so nothing in it waits."""

    __slots__ = ("_access", "_catalog", "_log_odds_of", "_markers", "_rules")

    def __init__(
        self, *, catalog: Catalog, log_odds_of: Callable[[str], float], markers: ContextMarkers, rules: TenantRules
    ) -> None:
        """`log_odds_of` scores a question; see classify.Classifier.log_odds."""
        self._catalog = catalog
        self._access = rules.access
        self._rules = rules
        self._log_odds_of = log_odds_of
        self._markers = markers

    def resolve(
        self,
        endpoint: Endpoint,
        tenant: str,
        body: bytes,
        control: CacheControl = NO_DIRECTIVES,
        form_type: bytes | None = None,
        session: Session | None = None,
    ) -> ParsedRequest:
        """Raises ApiError for an invalid request or a field that the tenant may not send (400), and for a model that is
        unknown or not the tenant's (404).

        `form_type`: the Content-Type of a form; None for JSON.
        """
        request = parse_request(endpoint, body) if form_type is None else parse_upload(endpoint, body, form_type)
        engine_field: str | None = None
        if has_engine_field(request.fields):
            engine_field = find_engine_field(request.fields)
            if engine_field is not None:
                self._rules.check_engine_field(tenant, engine_field)
            elif form_type is None:
                # An engine that takes the first of two values would read one that has not been checked.
                request = with_fields_once(request)
        parts = split_parts(request, self._markers)
        if not parts.texts_only:
            self._rules.check_media(tenant, request.fields)
        if engine_field is not None:
            parts = msgspec.structs.replace(parts, texts_only=False)
        access = self._access.get(tenant)
        name = self._catalog.requested_name(request.model, access)
        if not request.model:
            request = msgspec.structs.replace(request, model=name)
        # Only `auto` depends on the task. For other models, the classification is left to ParsedRequest.log_odds.
        log_odds = self._log_odds_of(parts.question) if name == AUTO else None
        model = self._catalog.resolve(name, task_for(log_odds) if log_odds is not None else None, access)
        # Before any look-up: what is stored for a model that the tenant may not use any more is not served either.
        if access is not None and not access.allows(model.public_name, model.aliases):
            raise unknown_model(name, reason="model_not_allowed")
        key = derive_cache_key(parts, tenant=tenant, model=model.name, revision=model.revision)
        parsed = ParsedRequest(request, parts, model, key, control, self._log_odds_of, log_odds)
        if self._catalog.has_shares:
            shares = self._catalog.shares_of(model.configured_name)
            if shares is not None:
                self._assign_cohort(parsed, tenant, session, shares)
        return parsed

    def _assign_cohort(
        self, parsed: ParsedRequest, tenant: str, session: Session | None, shares: Mapping[str, int]
    ) -> None:
        """Decides now which engines the request is for: the key depends on the revision of their model.

        `session`: only that of the headers. One of the body must not change the key.
        """
        model = parsed.model
        session_id = session.id if session is not None and session.is_of_header else None
        point = request_point(model.configured_name, tenant, session_id, parsed.key.text)
        parsed.cohort, parsed.engine_revision = pick_cohort(self._catalog.engines_for(model.name), shares, point)
        if parsed.engine_revision is not None:
            revision = model.revision_at(parsed.engine_revision)
            parsed.key = derive_cache_key(parsed.parts, tenant=tenant, model=model.name, revision=revision)
