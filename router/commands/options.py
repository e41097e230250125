"""The options that narrow down which entries are meant; see router.core.cache.entry_filter."""

from typing import Annotated

import typer

Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
Model = Annotated[str | None, typer.Option(help="Only this model's.")]
System = Annotated[str | None, typer.Option(help="Only with this system part: 16 hex digits, as in the key.")]
Rag = Annotated[str | None, typer.Option(help="Only with this rag part: 16 hex digits, as in the key.")]
Document = Annotated[str | None, typer.Option(help="Only those made with this document: its id, or its text.")]
