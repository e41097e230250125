"""The files under deploy/ are those of the description, and Grafana and Prometheus can load them."""

import json
import re
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import units

from tests.support.paths import ROOT
from tools.dashboards.description import TOKENS_PER_SECOND
from tools.dashboards.generated_files import DASHBOARDS, generated_files, write
from tools.dashboards.grafana_json import SCHEMA_VERSION
from tools.dashboards.provisioning import DASHBOARD_FOLDER

JSON = {name: json.loads((ROOT / f"deploy/grafana/dashboards/{name}.json").read_text()) for name in DASHBOARDS}
UNITS = {value for name, value in vars(units).items() if name[0].isupper() and isinstance(value, str)}

every_dashboard = pytest.mark.parametrize("name", DASHBOARDS)


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in JSON[name]["panels"] if panel["type"] != "row"]


def test_the_files_are_those_of_the_description() -> None:
    stale = [path for path, text in generated_files().items() if (ROOT / path).read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m tools.dashboards"


def test_no_other_file_lies_among_them() -> None:
    folders = (ROOT / "deploy/grafana", ROOT / "deploy/prometheus")
    there = {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert there == {path for path in generated_files() if not path.startswith("deploy/kubernetes/")}


def test_writing_changes_only_what_differs(tmp_path: Any) -> None:
    assert set(write(tmp_path)) == set(generated_files())
    assert write(tmp_path) == []
    (tmp_path / "deploy/grafana/dashboards/cache.json").write_text("{}")
    assert write(tmp_path) == ["deploy/grafana/dashboards/cache.json"]


@every_dashboard
def test_grafanas_types_read_a_dashboard_and_write_the_same(name: str) -> None:
    text = (ROOT / f"deploy/grafana/dashboards/{name}.json").read_text()
    read = models.Dashboard.from_json(json.loads(text))
    assert read.templating is not None
    for variable in read.templating.list_val or ():
        variable.auto = variable.auto_min = variable.auto_count = None  # see grafana_json
    assert json.loads(JSONEncoder().encode(read)) == json.loads(text)
    assert read.schema_version == SCHEMA_VERSION


def test_every_dashboard_has_its_own_uid_title_and_the_link_to_the_others() -> None:
    assert len({dashboard["uid"] for dashboard in JSON.values()}) == len(JSON)
    assert len({dashboard["title"] for dashboard in JSON.values()}) == len(JSON)
    for dashboard in JSON.values():
        (link,) = dashboard["links"]
        assert link["type"] == "dashboards"
        assert set(link["tags"]) <= set(dashboard["tags"])
        assert link["includeVars"]
        assert link["keepTime"]


@every_dashboard
def test_panels_have_unique_numbers_and_do_not_overlap(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in JSON[name]["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
    numbers = [panel["id"] for panel in JSON[name]["panels"]]
    assert sorted(set(numbers)) == numbers
    # No row of the grid is empty.
    assert {y for _, y in taken} == set(range(max(y for _, y in taken) + 1))


@every_dashboard
def test_every_panel_says_what_it_shows(name: str) -> None:
    for panel in panels(name):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS | {TOKENS_PER_SECOND}, panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        for target in panel["targets"]:
            assert target["legendFormat"], panel["title"]
        titles = [panel["title"] for panel in panels(name)]
        assert len(titles) == len(set(titles))


@every_dashboard
def test_a_dashboard_has_the_variables_that_it_uses(name: str) -> None:
    variables = {variable["name"] for variable in JSON[name]["templating"]["list"]}
    expressions = " ".join(target["expr"] for panel in panels(name) for target in panel["targets"])
    assert variables - {"datasource"} == set(DASHBOARDS[name].variables)
    assert [variable for variable in variables - {"datasource"} if f"${variable}" not in expressions] == []


def test_all_variables_together_are_those_that_viewers_filter_by() -> None:
    names = {variable["name"] for dashboard in JSON.values() for variable in dashboard["templating"]["list"]}
    assert names == {"datasource", "model", "engine", "tenant", "instance"}


def test_grafana_finds_the_dashboards_where_compose_mounts_them() -> None:
    providers = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/roundhouse.yml").read_text())
    (provider,) = providers["providers"]
    assert provider["options"]["path"] == DASHBOARD_FOLDER
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert f"./deploy/grafana/dashboards:{DASHBOARD_FOLDER}:ro" in compose["services"]["grafana"]["volumes"]


def test_the_page_lists_every_panel() -> None:
    page = (ROOT / "docs" / "dashboards.md").read_text()
    for dashboard in DASHBOARDS.values():
        _, heading, rest = page.partition(f"\n### {dashboard.title}\n")
        assert heading
        rows = re.findall(r"^\| ([^|]+) \| [^|]* \| (.*) \|$", rest.partition("\n### ")[0], re.MULTILINE)[2:]
        assert [title for title, _ in rows] == [panel.title for panel in dashboard.panels]
        assert not [title for title, values in rows if "no data" in values or not values]
