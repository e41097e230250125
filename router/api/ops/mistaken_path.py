"""Explains a path that does not exist where the client's base URL is probably wrong."""

from typing import Final

from router.core.endpoints.table import ENDPOINTS, UPLOAD_ENDPOINTS

_VERSION: Final = "/v1"
_KNOWN: Final = frozenset(endpoint.path for endpoint in (*ENDPOINTS, *UPLOAD_ENDPOINTS)) | {
    "/v1/models", "/v1/files", "/v1/batches"
}  # fmt: skip


def explain_path(path: str) -> str | None:
    """A sentence with the right path and what to change; None if nothing similar exists."""
    if (whole := path.rstrip("/")) != path and whole in _KNOWN:
        return f"The path is {whole}, without a slash at its end."
    if (longer := f"{_VERSION}{whole}") in _KNOWN or longer.startswith("/v1/models/"):
        return f"The path is {longer}: the base URL of the client lacks {_VERSION} at its end."
    shorter = whole.removeprefix(_VERSION)
    if whole.startswith(f"{_VERSION}/") and (shorter in _KNOWN or shorter.startswith("/v1/models/")):
        remedy = "the base URL of the client" if whole.startswith("/v1/v1/") else "this path"
        return f"The path is {shorter}: {remedy} has {_VERSION} once too often."
    return None
