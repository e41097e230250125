"""The options that select entries; see router.core.cache.entry_filter."""

from typing import Annotated

import typer

TenantOption = Annotated[str | None, typer.Option(help="Only entries of this tenant.")]
ModelOption = Annotated[str | None, typer.Option(help="Only entries of this model.")]
SystemOption = Annotated[str | None, typer.Option(help="Only entries with this system part of the key: 16 hex digits.")]
RagOption = Annotated[str | None, typer.Option(help="Only entries with this rag part of the key: 16 hex digits.")]
DocumentOption = Annotated[str | None, typer.Option(help="Only entries that use this document: its id or its text.")]
