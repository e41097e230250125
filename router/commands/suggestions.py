"""What an error says about a word that is not a command, or an option that does not exist.

A hint may be typed as it stands, so it never has a command or an option that changes something.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup

READ_ONLY: Final = frozenset({
    "batch ls", "batch show", "cache explain", "cache get", "cache ls", "cache savings", "cache show", "cache stats",
    "cache top", "check", "classify", "dashboard", "engines adapters list", "engines explain", "engines list",
    "engines logs", "engines preflight", "engines status", "help", "keys hash", "keys list", "models", "status", "top",
    "usage", "version",
})  # fmt: skip
"""The commands that change nothing. All others are never suggested."""

GROUPS: Final = frozenset({"batch", "cache", "engines", "engines adapters", "keys"})
"""Without a command, they print their help."""

CHANGING_OPTIONS: Final = frozenset({"--all", "--force", "--in-place", "--yes"})
"""They make a command change more, or ask less."""

_STOPPING: Final = "`roundhouse serve` and `roundhouse up` stop with Ctrl-C or SIGTERM"
# By group ("" is the program itself) and word: what other tools call it.
_OTHER_WORDS: Final = {
    ("", "ps"): "Did you mean 'top'?",
    ("", "ls"): "Did you mean 'cache ls' or 'engines list'?",
    ("", "list"): "Did you mean 'cache ls' or 'engines list'?",
    ("", "logs"): "Did you mean 'engines logs'?",
    ("", "stats"): "Did you mean 'cache stats'?",
    ("", "validate"): "Did you mean 'check'?",
    ("", "stop"): f"{_STOPPING}.",
    ("", "down"): f"{_STOPPING}.",
    ("batch", "list"): "Did you mean 'ls'?",
    ("batch", "get"): "Did you mean 'show'?",
    ("batch", "status"): "Did you mean 'show'?",
    ("cache", "list"): "Did you mean 'ls'?",
    ("engines", "ls"): "Did you mean 'list'?",
    ("engines", "ps"): "Did you mean 'list'?",
    ("engines", "top"): "Did you mean 'list'?",
    ("engines", "check"): "Did you mean 'preflight'?",
    ("engines adapters", "ls"): "Did you mean 'list'?",
    ("keys", "ls"): "Did you mean 'list'?",
}


def suggest(group: str, word: str, commands: Iterable[str]) -> str | None:
    """A sentence for a `word` that is none of the group's `commands`; None if nothing similar only reads."""
    if (known := _OTHER_WORDS.get((group, word))) is not None:
        return known
    # People mistype the first letter rarely: `stop` is not a mistyped `top`.
    candidates = [name for name in commands if _only_reads(group, name) and name[0] == word[:1]]
    matches = get_close_matches(word, candidates, n=1)
    return f"Did you mean {matches[0]!r}?" if matches else None


def _only_reads(group: str, name: str) -> bool:
    return f"{group} {name}".strip() in READ_ONLY | GROUPS


class _Group(TyperGroup):
    """Typer's own suggestion is the most similar command, whatever it does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not ctx.resilient_parsing and not args[0].startswith("-") and args[0] not in self.commands:
            group = ctx.command_path.partition(" ")[2]
            hint = suggest(group, args[0], self.commands)
            ctx.fail(f"No such command {args[0]!r}." + (f" {hint}" if hint is not None else ""))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # the class of Typer's error is private; every error is raised again
            similar = getattr(error, "possibilities", None)
            if similar:
                error.possibilities = [name for name in similar if name not in CHANGING_OPTIONS]  # type: ignore[attr-defined] # checked above
            raise


def command_group(help_text: str, **options: Any) -> typer.Typer:
    """A group of commands whose errors suggest only what changes nothing."""
    return typer.Typer(help=help_text, no_args_is_help=True, cls=_Group, suggest_commands=False, **options)
