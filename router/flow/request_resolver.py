"""The first steps of every request: what is asked, of which model, and under which key its answer stands."""

from collections.abc import Callable

from router.core.cache.cache_control import NO_WISHES, Control
from router.core.cache.key import Markers
from router.core.cache.key_derivation import derive, take_apart
from router.core.endpoints.request import parse
from router.core.types import AUTO, Endpoint, Task
from router.flow.parsed_request import Reading
from router.upstream.catalog import Catalog


class RequestReader:
    """Understands requests. It asks nobody, so nothing in it waits."""

    __slots__ = ("_catalog", "_classify", "_markers")

    def __init__(self, *, catalog: Catalog, classify: Callable[[str], Task], markers: Markers) -> None:
        self._catalog = catalog
        self._classify = classify
        self._markers = markers

    def read(self, endpoint: Endpoint, tenant: str, body: bytes, control: Control = NO_WISHES) -> Reading:
        """Raises ApiError for what is no request (400), and for a model that there is not (404)."""
        request = parse(endpoint, body)
        parts = take_apart(request, self._markers)
        task = self._classify(parts.question) if request.model == AUTO else None
        model = self._catalog.resolve(request.model, task)
        key = derive(parts, tenant=tenant, model=model.name, revision=model.revision)
        return Reading(request, parts, model, key, control, self._classify, task)
