"""The options that select entries; see router.core.cache.entry_filter."""

from typing import Annotated

import typer

TenantOption = Annotated[str | None, typer.Option(help="Only this tenant's.")]
ModelOption = Annotated[str | None, typer.Option(help="Only this model's.")]
SystemOption = Annotated[str | None, typer.Option(help="Only with this system part: 16 hex digits, as in the key.")]
RagOption = Annotated[str | None, typer.Option(help="Only with this rag part: 16 hex digits, as in the key.")]
DocumentOption = Annotated[str | None, typer.Option(help="Only those made with this document: its id, or its text.")]
