"""`roundhouse up --dry-run`: commands that a shell runs as they would be run, and no secret in them."""

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engines.dry_run import MASK, PlannedProcess, dry_run, shell_lines
from engines.plan import RouterSpec, UpPlan
from engines.spec import EngineSpec, LaunchSpec
from tests.support.cli_helpers import run_cli

RECORDER = """#!{python}
import json, os, sys
names = ["A", "QUOTED", "HF_TOKEN", "CUDA_VISIBLE_DEVICES"]
json.dump({{"argv": sys.argv, "env": {{n: os.environ[n] for n in names if n in os.environ}}}}, sys.stdout)
"""


def engine(name: str = "e", **launch: Any) -> EngineSpec:
    return EngineSpec(
        name=name, model="m", task="any", url="http://127.0.0.1:8001", served_model="org/M",
        launch=LaunchSpec(target="org/M", **launch),
    )  # fmt: skip


def plan(*engines: EngineSpec, vllm_python: str | None = "python3", **fields: Any) -> UpPlan:
    given: dict[str, Any] = {
        "state": "/state",
        "control_socket": "/state/up.sock",
        "redis_socket": None,
        "redis_url": "redis://:hunter2hunter2@h",
        "router": RouterSpec(host="127.0.0.1", port=8080, argv=["python", "-m", "router", "serve"]),
        "kind": "vllm",
        "vllm_python": vllm_python,
        "engines": list(engines),
        "example_model": "m",
    }
    return UpPlan(**given | fields)


def printed(plan: UpPlan, *, as_json: bool = False) -> str:
    out = io.StringIO()
    assert dry_run(plan, out, io.StringIO(), as_json=as_json) == 0
    return out.getvalue()


def processes(plan: UpPlan) -> dict[str, Any]:
    return {process["name"]: process for process in map(json.loads, printed(plan, as_json=True).splitlines())}


def test_processes_are_in_the_order_of_their_start_and_engines_started_elsewhere_are_left_out() -> None:
    elsewhere = EngineSpec(name="far", model="m", task="any", url="http://far:1", served_model="m")
    started = plan(engine("a"), elsewhere, engine("b"), redis_socket="/state/redis.sock")
    assert list(processes(started)) == ["redis", "a", "b", "router"]
    assert list(processes(plan(engine("a")))) == ["a", "router"]


def test_a_shell_runs_the_printed_command_with_the_words_and_the_environment_of_up(tmp_path: Path) -> None:
    recorder = tmp_path / "my python"
    recorder.write_text(RECORDER.format(python=sys.executable))
    recorder.chmod(0o700)
    spec = engine(
        device="gpu", gpus=[0, 1], chat_template="it's {{a}} $(touch x) `b`.jinja", speculation="ngram",
        args=["--seed", "1", "", "two\nlines"], env={"A": "1", "QUOTED": "a \"b\" $HOME 'c' \\"},
    )  # fmt: skip
    plan_of_it = plan(spec, vllm_python=str(recorder))
    done = subprocess.run(
        ["/bin/sh", "-ec", printed(plan_of_it).partition("\n# router")[0]],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    ran, wanted = json.loads(done.stdout), processes(plan_of_it)["e"]
    assert ran["argv"] == wanted["argv"]
    assert ran["env"] == {name: wanted["env"][name] for name in ("A", "QUOTED", "CUDA_VISIBLE_DEVICES")}
    assert not (tmp_path / "x").exists()


SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "launch",
    [
        {"env": {"HF_TOKEN": SECRET}},
        {"env": {"VLLM_API_KEY": SECRET}},
        {"env": {"aws_secret_access_key": SECRET}},
        {"env": {"PROXY": f"http://me:{SECRET}@proxy:1"}},
        {"env": {"X": f"hf_{SECRET}"}},
        {"args": ["--api-key", SECRET]},
        {"args": ["--api-key", "one", SECRET]},
        {"args": [f"--hf-token={SECRET}"]},
        {"args": ["--x", f"sk-{SECRET}"]},
        {"args": ["--additional-config", f'{{"auth": "Bearer {SECRET}"}}']},
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_secrets_are_not_printed(launch: dict[str, Any], as_json: bool) -> None:
    assert SECRET not in printed(plan(engine(**launch)), as_json=as_json)


def test_a_secret_is_read_from_a_variable_of_the_shell() -> None:
    spec = engine(env={"HF_TOKEN": SECRET}, args=["--api-key", SECRET, f"--hf-token={SECRET}"])
    lines = [line.strip(" \\") for line in printed(plan(spec)).splitlines()]
    assert {'HF_TOKEN="$HF_TOKEN"', '--api-key "$API_KEY"', '--hf-token="$HF_TOKEN"'} <= set(lines)
    shown = processes(plan(spec))["e"]
    assert shown["env"]["HF_TOKEN"] == MASK
    assert shown["argv"][-3:] == ["--api-key", MASK, f"--hf-token={MASK}"]


def test_options_about_tokens_are_not_taken_for_secrets() -> None:
    spec = engine(max_num_batched_tokens=4096, args=["--tokenizer", "org/T"], env={"TOKENIZERS_PARALLELISM": "true"})
    shown = printed(plan(spec))
    assert "--max-num-batched-tokens 4096" in shown
    assert "--tokenizer org/T" in shown
    assert "TOKENIZERS_PARALLELISM=true" in shown


def test_a_line_break_in_a_name_ends_no_comment() -> None:
    process = PlannedProcess(name="e", description="vLLM, a\ntouch x", argv=["true"], env={})
    assert shell_lines(process) == "# e: vLLM, a touch x\ntrue\n"


def test_vllm_need_not_be_installed_where_its_command_is_printed() -> None:
    err = io.StringIO()
    out = io.StringIO()
    assert dry_run(plan(engine(), vllm_python="/nowhere/python"), out, err, as_json=False) == 0
    assert "/nowhere/python -m vllm.entrypoints.openai.api_server" in out.getvalue()
    assert err.getvalue() == "roundhouse: --vllm-python: there is no /nowhere/python\n"


CONFIGURATION = """
[router]
state = "{state}"
[[model]]
name = "llama"
[[engine]]
name = "one"
model = "llama"
profile = "llama-chat"
url = "http://127.0.0.1:8001"
[engine.launch]
gpus = [1]
"""


async def test_the_command_prints_and_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(CONFIGURATION.format(state=tmp_path / "state"))
    shown = await run_cli("up", "--config", path, "--engines", "vllm", "--vllm-python", sys.executable, "--dry-run")
    assert (shown.code, shown.stderr) == (0, "")
    assert [line.partition(":")[0] for line in shown.stdout.splitlines() if line.startswith("#")] == [
        "# redis", "# one", "# router",
    ]  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES=1" in shown.stdout
    assert not (tmp_path / "state").exists()
    as_json = await run_cli("up", "--config", path, "--engines", "simulator", "--dry-run", "--json")
    assert [process["name"] for process in as_json.json_lines()] == ["redis", "one", "router"]
    assert as_json.json_lines()[1]["argv"][1:3] == ["-m", "engines.simulator"]


async def test_json_without_a_dry_run_is_a_wrong_usage(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.toml"
    path.write_text(CONFIGURATION.format(state=tmp_path / "state"))
    refused = await run_cli("up", "--config", path, "--json")
    assert (refused.code, refused.stderr) == (2, "roundhouse: --json: only possible with --dry-run\n")
    assert list(tmp_path.iterdir()) == [path]


def test_an_engine_on_a_ray_cluster_says_what_it_asks_for_and_gets_its_address_there() -> None:
    spec = engine(placement="ray", tensor_parallel_size=2, pipeline_parallel_size=2)
    planned = processes(plan(spec))["e"]
    assert planned["description"].endswith("on a Ray node with 1 CPU, 4 GPU")
    assert "--host" not in planned["argv"]
    assert "CUDA_VISIBLE_DEVICES" not in planned["env"], "Ray sets it"


def test_a_simulated_engine_on_a_ray_cluster_asks_for_no_gpu() -> None:
    spec = engine(placement="ray", tensor_parallel_size=2, resources={"CPU": 0.5})
    planned = processes(plan(spec, kind="simulator"))["e"]
    assert planned["description"].endswith("on a Ray node with 0.5 CPU")
