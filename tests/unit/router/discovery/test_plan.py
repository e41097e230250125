"""What engines say becomes models and engines of a configuration, and that becomes a file."""

import json
from typing import Any

import pytest

from router.discovery.configuration_text import configuration_text, without_passwords
from router.discovery.models import ServedModel, read_models
from router.discovery.plan import MAX_MODELS, Answer, Plan, plan
from router.settings import Settings, parse

A, B, C = "http://a:8000", "http://b:8000", "http://c:8000"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def page(*models: dict[str, Any]) -> bytes:
    return json.dumps({"object": "list", "data": models}).encode()


def of_vllm(name: str, root: str = LLAMA, **more: Any) -> dict[str, Any]:
    return {"id": name, "owned_by": "vllm", "root": root, "parent": None, "max_model_len": 8192, **more}


def serving(url: str, *names: str, kind: Any = "vllm", length: int | None = 8192) -> Answer:
    return Answer(url, tuple(ServedModel(name, (), kind, length) for name in names))


def written(found: Plan, **options: Any) -> Settings:
    """The settings in the file of a plan."""
    environment = {"VLLM_API_KEY": "k", "REDIS_PASSWORD": "p"}
    return parse(configuration_text(found, **{"redis_url": "redis://r:6379", **options}), environment)


def names(found: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(model.name, model.aliases) for model in found.models]


# The list of models


def test_vllms_served_model_names_are_names_of_one_model_and_adapters_are_left_out() -> None:
    listed = read_models(page(of_vllm(LLAMA), of_vllm("llama"), of_vllm("sql", "/loras/sql", parent=LLAMA)))
    assert listed == [ServedModel(LLAMA, ("llama",), "vllm", 8192)]


def test_the_models_of_other_servers_are_models_each() -> None:
    ollama = [{"id": name, "owned_by": "library"} for name in ("llama3:8b", "phi3", "phi3")]
    listed = read_models(page(*ollama))
    assert listed == [ServedModel("llama3:8b", (), "ollama"), ServedModel("phi3", (), "ollama")]


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"data": 1}', b'{"data": [{}]}', b"\xff", b"[" * 100_000])
def test_anything_else_is_no_list(body: bytes) -> None:
    assert read_models(body) is None


# Names


@pytest.mark.parametrize(
    ("served", "name"),
    [
        (LLAMA, "llama-3.1-8b-instruct"),
        ("/srv/models/Llama_3/", "llama_3"),
        ("llama3:8b", "llama3-8b"),
        ("modèle 1", "mod-le-1"),
        ("auto", "auto-2"),
        ("日本", "model"),
        ("x" * 100, "x" * 64),
    ],
)
def test_a_models_name_is_the_last_part_of_the_engines_and_that_is_an_alias(served: str, name: str) -> None:
    found = plan([serving(A, served)])
    assert [model.name for model in found.models] == [name]
    assert [model.aliases for model in found.models] == [(served,) if served != "auto" else ()]
    assert written(found).engine[0].served_model == served


def test_models_whose_names_would_be_the_same_get_different_ones() -> None:
    found = plan([serving(A, "meta/llama", "llama", "org/llama", "org/Llama")])
    assert names(found) == [
        ("meta-llama", ("meta/llama",)),
        ("llama", ()),
        ("org-llama", ("org/llama",)),
        ("org-llama-2", ("org/Llama",)),
    ]
    assert len(written(found).model) == 4


def test_a_model_whose_name_is_a_template_or_too_long_is_left_out() -> None:
    found = plan([serving(A, "llama", "a${HOME}", "x" * 300, "bell\x07")])
    assert [model.name for model in found.models] == ["llama"]
    assert found.notes == (f"{A} serves models whose names cannot be configured; they are left out",)


# Engines


def test_engines_that_serve_the_same_model_are_replicas() -> None:
    found = plan([serving(A, LLAMA), serving(B, "phi"), serving(C, LLAMA)])
    settings = written(found)
    assert [(e.name, e.model, e.addresses, e.kind) for e in settings.engine] == [
        ("llama-3.1-8b-instruct", "llama-3.1-8b-instruct", [A, C], "vllm"),
        ("phi", "phi", [B], "vllm"),
    ]


def test_engines_of_another_kind_are_engines_of_their_own() -> None:
    settings = written(plan([serving(A, "llama"), serving(B, "llama", kind=None), serving(C, "llama", kind=None)]))
    assert [(e.name, e.model, e.addresses) for e in settings.engine] == [
        ("llama", "llama", [A]),
        ("llama-2", "llama", [B, C]),
    ]


def test_only_the_models_that_are_wanted_are_taken_and_few_of_many() -> None:
    many = serving(A, *[f"m{number}" for number in range(100)])
    assert len(plan([many]).models) == MAX_MODELS
    assert plan([many]).notes == (f"{A} serves 100 models; {MAX_MODELS} are taken: choose with --model",)
    found = plan([many], ["m50", "absent"])
    assert ([model.name for model in found.models], found.notes) == (["m50"], ("no engine serves 'absent'",))


# The file


def test_the_file_turns_batches_on_in_the_state_directory() -> None:
    settings = written(plan([serving(A, "llama")]))
    assert settings.batch.folder == f"{settings.router.state}/files"


def test_the_file_has_no_secret() -> None:
    url = "redis+sentinel://user:hunter2@h:26379/main?sentinel_password=hunter3&db=1"
    text = configuration_text(plan([serving(A, "llama")]), redis_url=url, api_key_variable="VLLM_API_KEY")
    assert "hunter" not in text
    environment = {"REDIS_PASSWORD": "hunter2", "SENTINEL_PASSWORD": "hunter3", "VLLM_API_KEY": "k"}
    settings = parse(text, environment)
    assert (settings.cache.url, settings.engine[0].api_key) == (url, "k")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:6379/1", "redis://h:6379/1"),
        ("redis://:secret@h", "redis://:${REDIS_PASSWORD}@h"),
        ("redis://:${REDIS_PW}@h", "redis://:${REDIS_PW}@h"),
        ("unix://u:secret@/run/redis.sock", "unix://u:${REDIS_PASSWORD}@/run/redis.sock"),
    ],
)
def test_a_password_becomes_a_variable(url: str, shown: str) -> None:
    assert without_passwords(url)[0] == shown


def test_an_engine_that_did_not_answer_is_a_comment_beside_others_and_a_placeholder_alone() -> None:
    down = Answer(B, problem="nothing listens there", retry=True)
    text = configuration_text(plan([serving(A, "llama"), down]), redis_url="redis://r")
    assert f"the engine at {B} could not be asked: nothing listens there" in text
    assert f'# url = "{B}"' in text
    assert [engine.name for engine in parse(text, {}).engine] == ["llama"]
    alone = parse(configuration_text(plan([down, Answer(C, problem="is down")]), redis_url="redis://r"), {})
    assert [(e.name, e.model, e.addresses) for e in alone.engine] == [
        ("engine-1", "model", [B]),
        ("engine-2", "model", [C]),
    ]
