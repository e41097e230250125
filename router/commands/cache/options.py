"""The options that select entries; see router.core.cache.entry_filter."""

from typing import TYPE_CHECKING, Annotated

import typer

from router.commands.console import EXIT_USAGE, fail
from router.errors import ApiError

if TYPE_CHECKING:
    from router.store.admin.entry_order import Order

TenantOption = Annotated[str | None, typer.Option(help="Only entries of this tenant.")]
ModelOption = Annotated[str | None, typer.Option(help="Only entries of this model.")]
SystemOption = Annotated[str | None, typer.Option(help="Only entries with this system part of the key: 16 hex digits.")]
RagOption = Annotated[str | None, typer.Option(help="Only entries with this rag part of the key: 16 hex digits.")]
DocumentOption = Annotated[str | None, typer.Option(help="Only entries that use this document: its id or its text.")]
SortOption = Annotated[
    str, typer.Option(help="key; age, the newest first; or hits, tokens or saved (seconds), the largest first.")
]


def check_sort(text: str) -> "Order":
    """The value of SortOption. An invalid one ends the command."""
    from router.store.admin.entry_order import parse_order  # it would slow all other commands down

    try:
        return parse_order(text)
    except ApiError as error:
        fail(f"--sort: {error.message}", EXIT_USAGE)
