"""The command `roundhouse`. Exit codes: 0 success, 1 failure, 2 wrong usage or an invalid configuration."""

import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from router.commands.audit.command import audit
from router.commands.batch.commands import app as batch
from router.commands.cache.commands import app as cache
from router.commands.console import (
    EXIT_FAILED,
    EXIT_USAGE,
    ConfigOption,
    EngineKindOption,
    JsonLinesOption,
    JsonOption,
    VllmPythonOption,
    check_engine_kind,
    fail,
    load_settings,
    print_err,
    write_json,
)
from router.commands.dashboard import dashboard
from router.commands.engines.commands import app as engine_commands
from router.commands.engines.engine_plan import build_plan, exec_engines
from router.commands.init import init
from router.commands.keys import app as keys
from router.commands.local_key import make_local_key
from router.commands.models import models
from router.commands.reload import reload
from router.commands.serve import serve
from router.commands.status import status
from router.commands.suggestions import command_group
from router.commands.top.command import top
from router.commands.usage import usage
from router.commands.why import why
from router.core.plural import pluralize
from router.settings import DEFAULT_PATH, missing_extra

app = command_group(
    "A cache-aware, OpenAI-compatible router for vLLM engines.",
    name="roundhouse",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # those below inherit it
)

app.add_typer(batch, name="batch")
app.add_typer(cache, name="cache")
app.add_typer(engine_commands, name="engines")
app.add_typer(keys, name="keys")
for command in (init, serve, reload, status, models, dashboard, top, why, usage, audit):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _root(show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if show_version:
        version()
        raise typer.Exit


@app.command()
def version(as_json: JsonOption = False) -> None:
    """Print the version."""
    from router.build_info import build_version, describe_build, is_compiled

    if as_json:
        write_json({"version": build_version(), "compiled": is_compiled()})
    else:
        typer.echo(f"roundhouse {describe_build()}")


@app.command(name="help")
def help_(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="As in `cache purge`.")] = None,
) -> None:
    """Show the help of a command."""
    # Typed in this way, an unknown word gets its usual error, with a hint.
    context.find_root().command.main([*(names or []), "--help"], prog_name="roundhouse")


@app.command()
def up(
    config: ConfigOption = Path(DEFAULT_PATH),
    engines: EngineKindOption = "auto",
    vllm_python: VllmPythonOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands, and start nothing.")] = False,
    as_json: JsonLinesOption = False,
) -> None:
    """Run a private Redis, the engines and the router of a configuration, until Ctrl-C."""
    settings = load_settings(config)
    if (problem := missing_extra(settings)) is not None:
        fail(f"{config}: {problem}")
    if as_json and not dry_run:
        fail("--json: only possible with --dry-run", EXIT_USAGE)
    if not dry_run:
        make_local_key(settings)
    command = ["dry-run", *(["--json"] if as_json else [])] if dry_run else ["up"]
    exec_engines(command, build_plan(settings, config, check_engine_kind(engines), vllm_python))


@app.command()
def check(config: ConfigOption = Path(DEFAULT_PATH), as_json: JsonOption = False) -> None:
    """Read the configuration, connect to everything in it, and report what is wrong."""
    from router.checks.check import check_all
    from router.checks.finding import Finding, Problem, report_json, wrong

    def write_mistakes(mistakes: Sequence[str]) -> None:
        if as_json:
            write_json(report_json([Finding("configuration", mistake, "error") for mistake in mistakes]))

    settings = load_settings(config, write_mistakes)
    findings = asyncio.run(check_all(settings))
    from router.flow.tenant_rules import unmatched_models

    findings += [Finding("configuration", line, "warning") for line in unmatched_models(settings)]
    if (missing := missing_extra(settings)) is not None:
        setting, _, note = missing.partition(": ")
        findings.append(wrong("configuration", setting, Problem(*note.split("; ", 1))))
    if as_json:
        write_json(report_json(findings))
    else:
        models, engines = pluralize(len(settings.model), "model"), pluralize(len(settings.engine), "engine")
        typer.echo(f"ok    {config}: {models}, {engines}")
        for line in chain.from_iterable(finding.lines() for finding in findings):
            typer.echo(line)
    if not all(finding.ok for finding in findings):
        raise typer.Exit(EXIT_FAILED)


@app.command()
def classify(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts; if none, JSON lines with `prompt` from standard input."),
    ] = None,
    as_json: JsonLinesOption = False,
) -> None:
    """Classify prompts as code or chat, with the words that decided it."""
    from router.core.routing.classify import Classifier

    classifier = Classifier.load()
    for prompt in prompts if prompts else _prompts_from_stdin():
        verdict = classifier.classify(prompt)
        if as_json:
            write_json({"task": verdict.task, "score": round(verdict.score, 4)})
        else:
            features = ", ".join(f"{feature} {weight:+.2f}" for feature, weight in classifier.explain(prompt)[:5])
            shortened = prompt if len(prompt) <= 60 else prompt[:59] + "…"
            typer.echo(f"{verdict.task:4}  {verdict.score:.2f}  {shortened!r}  ({features})")


def _prompts_from_stdin() -> list[str]:
    if sys.stdin.isatty():
        print_err("reading JSON lines with `prompt` from standard input; end with Ctrl-D")
    prompts = []
    for number, line in enumerate(sys.stdin, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
        except (ValueError, KeyError, TypeError):
            prompt = None
        if not isinstance(prompt, str):
            fail(f'standard input, line {number}: expected a JSON object with a string "prompt"', EXIT_USAGE)
        prompts.append(prompt)
    return prompts


def main() -> None:
    app(prog_name="roundhouse")
