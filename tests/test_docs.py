"""The documentation is complete: every setting, every metric, and no dead link."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec

from router.core.cache.fingerprint import MissReason
from router.core.cache.key_derivation import IGNORED_FIELDS
from router.core.endpoints.recording.recorded_response import NotStoredReason
from router.core.types import BypassReason, CacheStatus
from router.settings import Settings, Strict, parse
from router.store.entry_store import WriteResult
from router.telemetry.metric_table import METRICS
from tests.support.offenders import assert_none
from tests.support.paths import PAGES, ROOT
from tests.support.redis_deployments import MINIMAL_ACL, SENTINEL_ACL

DOCS = ROOT / "docs"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tables() -> list[tuple[str, type[Strict]]]:
    """Each table of the configuration, with its heading."""
    found: list[tuple[str, type[Strict]]] = []

    def walk(name: str, kind: type[Strict], brackets: str) -> None:
        found.append((brackets.format(name), kind))
        for field in msgspec.structs.fields(kind):
            types = [field.type, *getattr(field.type, "__args__", ())]
            for inner in types:
                if isinstance(inner, type) and issubclass(inner, Strict):
                    walk(f"{name}.{field.name}", inner, "[{}]")

    for field in msgspec.structs.fields(Settings):
        (inner,) = getattr(field.type, "__args__", (field.type,))
        walk(field.name, inner, "[[{}]]" if inner is not field.type else "[{}]")
    return found


def section(page: str, heading: str) -> str:
    """The text under a heading, up to the next one."""
    _, found, rest = page.partition(f"\n## {heading}\n")
    assert found, f"no heading {heading}"
    return rest.partition("\n## ")[0]


def test_there_is_a_table_for_every_part_of_the_configuration() -> None:
    assert {heading for heading, _ in tables()} == {
        "[router]", "[cache]", "[responses]", "[batch]", "[auth]", "[[tenant]]", "[[model]]", "[[engine]]",
        "[engine.launch]", "[[gpu]]", "[breaker]", "[timeouts]", "[retry]", "[watchdog]", "[tracing]",
    }  # fmt: skip


def test_every_setting_is_explained_under_its_heading() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert_none(
        f"{heading} {field.name}"
        for heading, kind in tables()
        for field in msgspec.structs.fields(kind)
        if f"`{field.name}`" not in section(page, heading)
    )


def test_every_explained_setting_exists() -> None:
    page = (DOCS / "configuration.md").read_text()
    assert_none(
        f"{heading} {name}"
        for heading, kind in tables()
        for row in re.findall(r"^\| (`.*?`) \|", section(page, heading), re.MULTILINE)
        for name in re.findall(r"\w+", row)
        if name not in kind.__struct_fields__
    )


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    page = (DOCS / "configuration.md").read_text()
    checked = 0
    for heading, kind in tables():
        if heading not in ("[router]", "[cache]", "[responses]", "[batch]", "[breaker]", "[timeouts]", "[watchdog]"):
            continue
        defaults = msgspec.structs.asdict(kind())
        for names, default_cell in re.findall(r"^\| (`.*?`) \| (.*?) \|", section(page, heading), re.MULTILINE):
            if default_cell == "none":
                assert defaults[names.strip("`")] is None
                continue
            defaults_shown = re.findall(r"`([^`]*)`", default_cell)
            for name, default in zip(re.findall(r"\w+", names), defaults_shown, strict=True):
                table = heading.strip("[]")
                text = f'[{table}]\n{name} = {default}\n[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\n'
                settings = parse(text + 'url = "http://127.0.0.1"\n', {})
                assert getattr(getattr(settings, table), name) == defaults[name], f"{heading} {name}"
                checked += 1
    assert checked > 15


def test_the_smallest_configuration_on_the_page_works() -> None:
    block = re.search(r"```toml\n(.*?)```", (DOCS / "configuration.md").read_text(), re.DOTALL)
    assert block is not None
    assert [model.name for model in parse(block[1], {}).model] == ["llama"]


def test_every_metric_is_explained_with_its_labels_and_every_explained_metric_exists() -> None:
    metrics = section((DOCS / "operating.md").read_text(), "Metrics")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*)\|", metrics, re.MULTILINE)
    assert {name: tuple(re.findall(r"\w+", labels)) for name, labels in rows} == {
        row.name: row.labels for row in METRICS.values()
    }


def test_every_write_result_bypass_reason_miss_reason_and_status_is_explained() -> None:
    operating = (DOCS / "operating.md").read_text()
    assert [result for result in (*NotStoredReason, *get_args(WriteResult)) if f"`{result}`" not in operating] == []
    wire = (DOCS / "wire.md").read_text()
    assert [reason for reason in (*BypassReason, *get_args(MissReason)) if f"`{reason}`" not in wire] == []
    assert [status for status in CacheStatus if f"`{status}`" not in wire] == []
    why = section((DOCS / "debugging-a-miss.md").read_text(), "The reason of a miss")
    assert set(re.findall(r"^\| `([\w-]+)` \|", why, re.MULTILINE)) == set(get_args(MissReason))


def test_fields_that_are_not_part_of_the_key_are_listed() -> None:
    page = (DOCS / "debugging-a-miss.md").read_text()
    assert [field for field in IGNORED_FIELDS if f"`{field}`" not in page] == []


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[tuple[int, str]]:
    """The links of a page to files and headings, with their lines; code blocks are skipped."""
    text = FENCED.sub(lambda match: "\n" * match[0].count("\n"), page.read_text())
    for found in LINK.finditer(text):
        if not re.match(r"https?://|mailto:", found[1]):
            yield text.count("\n", 0, found.start(1)) + 1, found[1]


def defect(page: Path, link: str) -> str | None:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return "has no target"
    if not target.resolve().is_relative_to(ROOT):
        return "is outside of the project"
    return "names no heading" if anchor and anchor not in anchors(target) else None


def test_every_link_has_a_target() -> None:
    assert_none(
        f"{page.relative_to(ROOT)}:{line}: {link} {found}"
        for page in PAGES
        for line, link in links(page)
        if (found := defect(page, link)) is not None
    )


def test_no_command_installs_from_the_index_what_has_not_been_uploaded() -> None:
    assert "has not been uploaded yet" in (DOCS / "installing.md").read_text()  # else this test can go
    commands = [line for page in PAGES for block in FENCED.findall(page.read_text()) for line in block.splitlines()]
    named = [line for line in commands if "pip install" in line and "roundhouse-" in line]
    assert named
    assert [line for line in named if "--find-links" not in line] == []


def test_no_term_of_the_glossary_is_explained_twice() -> None:
    first_cells = re.findall(r"^\| (.*?) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    terms = [term for cell in first_cells for term in cell.split(", ")]
    assert sorted({term for term in terms if terms.count(term) > 1}) == []


def test_the_documented_acl_rules_are_those_of_the_tests() -> None:
    page = (DOCS / "deploying.md").read_text(encoding="utf-8")
    assert " ".join(word for word in MINIMAL_ACL if word[0] not in ">o") in page.replace(" on >password", "")
    assert " ".join(word for word in SENTINEL_ACL if word[0] == "+") in page
