import re
import tomllib
from pathlib import Path

import pytest

from router.dashboard import pages
from router.dashboard.pages import STATIC_FILES, closed_page, dashboard_page, login_page
from tests.support.offenders import assert_none
from tests.support.paths import ROOT

PAGES = {"dashboard": dashboard_page(), "login": login_page(), "refused": login_page("No."), "closed": closed_page()}
SCRIPTS = {name: content.decode() for name, (_, content) in STATIC_FILES.items() if name.endswith(".js")}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_only_static_files_that_exist(name: str) -> None:
    page = PAGES[name].decode()
    loaded = re.findall(r'<(?:link|script|img)[^>]* (?:href|src)="([^"]*)"', page)
    assert loaded
    assert {path.removeprefix("/dashboard/static/") for path in loaded} <= set(STATIC_FILES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_no_inline_script_style_or_event_handler(name: str) -> None:
    page = PAGES[name].decode()
    assert not re.search(r"<style|<script(?![^>]* src=)| style=| on\w+=|javascript:", page)


@pytest.mark.parametrize("name", PAGES)
def test_ids_are_unique_and_labels_refer_to_them(name: str) -> None:
    page = PAGES[name].decode()
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    references = re.findall(r' (?:aria-labelledby|aria-describedby|for|list)="([^"]*)"', page)
    referred = {each for found in references for each in found.split()}
    assert referred - {"dialog-title"} <= set(ids)  # the dialog's title exists while it is open


def test_what_a_page_is_given_is_escaped() -> None:
    hostile = "<script>alert(1)</script>\"'&"
    assert b"<script>alert" not in login_page(hostile)
    page = dashboard_page(auth_mode=hostile, tenants=[hostile])  # type: ignore[arg-type] # to test the escaping
    assert b"<script>alert" not in page
    assert b'value="&lt;script&gt;' in page


def test_the_page_names_the_auth_mode_and_suggests_the_tenants() -> None:
    page = dashboard_page(auth_mode="keys", tenants=["globex", "acme"]).decode()
    assert 'data-auth-mode="keys"' in page
    assert '<option value="acme"><option value="globex">' in page


def test_each_view_has_an_access_key() -> None:
    # With a modifier of the browser: a bare key would hinder those who speak their input (WCAG 2.1.4).
    found = re.findall(r'data-view="(\w+)" accesskey="(\d)"', dashboard_page().decode())
    names = ["overview", "cache", "playground", "requests", "tenants", "changes"]
    assert found == [(name, str(number)) for number, name in enumerate(names, 1)]


def test_a_script_never_parses_text_as_html_or_code() -> None:
    html = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    code = r"\beval\b|new Function|setTimeout\(\"|setAttribute\(\"(style|on)"
    assert_none(
        f"{name}:{number}: {line.strip()}"
        for name, script in SCRIPTS.items()
        for number, line in enumerate(script.splitlines(), start=1)
        if re.search(f"{html}|{code}", line)
    )


def test_a_script_imports_only_modules_that_exist() -> None:
    assert_none(
        f"{name}: {module}"
        for name, script in SCRIPTS.items()
        for module in re.findall(r'(?:from|import) "([^"]*)"', script)
        if module.removeprefix("./") not in SCRIPTS
    )


def test_every_static_file_has_a_content_type() -> None:
    folder = Path(pages.__file__).parent / "static"
    assert {file.name for file in folder.iterdir()} == set(STATIC_FILES)
    assert STATIC_FILES["main.js"][0].startswith("text/javascript")


def test_the_wheel_contains_the_pages_and_their_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = ROOT / "router"
    packaged = {file for glob in project["tool"]["setuptools"]["package-data"]["router"] for file in package.glob(glob)}
    folder = package / "dashboard"
    assert {file for file in folder.rglob("*.*") if file.suffix not in {".py", ".pyc"}} <= packaged
