"""[engine.launch]: its rules, and profiles that fill it in."""

import re
from typing import Any, get_args

import pytest

from router.settings.profiles import PROFILES, ProfileName
from router.settings.tables import LaunchSettings
from tests.support.configurations import ENGINE, MINIMAL, MODEL, config_error, mistakes, parse_config
from tests.support.paths import ROOT


def launch(text: str) -> str:
    """A configuration with these settings of a launch, with `;` between lines."""
    lines = "\n".join(line.strip() for line in text.split(";"))
    return f'{MINIMAL}max_model_len = 8192\n[engine.launch]\ntarget = "t"\n{lines}\n'


GPUS = "tensor_parallel_size * pipeline_parallel_size"
TOO_SMALL = "must be at least the engine's max_model_len if enable_chunked_prefill is false"
NO_EFFECT = 'has an effect only with speculation = "ngram"; set that, or remove it'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('quantization = "awk"', "quantization: 'awk' is none of awq, gptq, fp8, compressed-tensors"),
        ('kv_cache_dtype = "int8"', "kv_cache_dtype: 'int8' is none of auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2"),
        ('device = "tpu"', "device: 'tpu' is none of auto, cpu, gpu"),
        ('speculation = "medusa"', "speculation: 'medusa' is none of draft_model, ngram, eagle, eagle3, none"),
        ("gpu_memory_utilization = 1.5", "gpu_memory_utilization: 1.5 is not a number greater than 0 and at most 1"),
        ("max_num_seqs = 0", "max_num_seqs: 0 is not an integer of at least 1"),
        ("max_lora_rank = 3", "max_lora_rank: 3 is none of 1, 8, 16, 32, 64, 128, 256, 320, 512"),
        ("max_lora_rank = 8", "max_lora_rank: 8 needs lora; name the adapters there"),
        ('enable_prefix_caching = "yes"', "enable_prefix_caching: 'yes' is not true or false (without quotes)"),
        ('chat_template = ""', "chat_template: '' must not be empty"),
        ('draft = ""', "draft: '' must not be empty"),
        ('lora = { sql = "" }', "lora.sql: '' must not be empty"),
        ("gpus = [0, 1, 0]", "gpus[2]: 0 is named twice; name each GPU once"),
        ('gpus = [0]; device = "cpu"', 'gpus: cannot be combined with device = "cpu"; remove one of them'),
        ('placement = "slurm"', "placement: 'slurm' is none of local, ray"),
        ("resources = { CPU = 2 }", 'resources: has an effect only with placement = "ray"; set that, or remove it'),
        ("gpus = [0]; tensor_parallel_size = 2", f"gpus: names 1, but {GPUS} is 2; name 2, or change the sizes"),
        (
            "gpus = [0, 1]; tensor_parallel_size = 2; pipeline_parallel_size = 2",
            f"gpus: names 2, but {GPUS} is 4; name 4, or change the sizes",
        ),
        (
            "gpus = [0, 1, 2]; pipeline_parallel_size = 2",
            "gpus: names 3 GPUs, which cannot be divided into 2 pipeline stages of equal size; add or remove some",
        ),
        ('speculation = "eagle"', "speculation: 'eagle' needs a draft; set draft to a model"),
        ('speculation = "draft_model"', "speculation: 'draft_model' needs a draft; set draft to a model"),
        ('draft = "d"; speculation = "ngram"', "draft: 'd' has no effect with speculation = \"ngram\"; remove it"),
        ('draft = "d"; speculation = "none"', "draft: 'd' has no effect with speculation = \"none\"; remove it"),
        (
            'draft = "d"; speculation = "eagle"; heterogeneous_vocab = true',
            'heterogeneous_vocab: true is only possible with speculation = "draft_model"; remove it',
        ),
        ('draft = "d"; prompt_lookup_max = 3', f"prompt_lookup_max: 3 {NO_EFFECT}"),
        ("prompt_lookup_min = 3", f"prompt_lookup_min: 3 {NO_EFFECT}"),
        (
            'speculation = "ngram"; prompt_lookup_min = 4; prompt_lookup_max = 3',
            "prompt_lookup_min: 4 must be at most prompt_lookup_max",
        ),
        (
            "speculation_max_batch = 8",
            "speculation_max_batch: 8 has no effect without speculation; set draft or speculation, or remove it",
        ),
        (
            "max_num_batched_tokens = 4096; enable_chunked_prefill = false",
            f"max_num_batched_tokens: 4096 {TOO_SMALL}",
        ),
        (
            "max_num_batched_tokens = 16; max_num_seqs = 32",
            "max_num_batched_tokens: 16 must be at least max_num_seqs",
        ),
        (
            'max_num_batched_tokens = 159; max_num_seqs = 32; draft = "d"; lora = { sql = "a" }',
            "max_num_batched_tokens: 159 must be at least 160 with lora: max_num_seqs * (num_speculative_tokens + 1)",
        ),
    ],
)
def test_a_mistake_in_a_launch_is_reported_with_its_remedy(text: str, message: str) -> None:
    assert config_error(launch(text)) == f"engine[0].launch.{message}"


@pytest.mark.parametrize(
    "text",
    [
        "gpus = [0, 1, 2, 3]; pipeline_parallel_size = 2",
        "tensor_parallel_size = 4",  # the first four that vLLM sees
        'draft = "d"; heterogeneous_vocab = false; speculation = "eagle"',
        "max_num_batched_tokens = 8192; enable_chunked_prefill = false",
        "max_num_batched_tokens = 4096",
        'max_num_batched_tokens = 160; max_num_seqs = 32; draft = "d"; lora = { sql = "a" }',
        'max_num_batched_tokens = 32; max_num_seqs = 32; lora = { sql = "a" }',
        'max_num_batched_tokens = 32; max_num_seqs = 32; draft = "d"',
        'speculation = "ngram"; prompt_lookup_min = 3; prompt_lookup_max = 3; speculation_max_batch = 8',
    ],
)
def test_what_vllm_accepts_is_no_mistake(text: str) -> None:
    assert parse_config(launch(text)).engine[0].launch is not None


def test_mistakes_of_a_launch_are_reported_together_without_their_consequences() -> None:
    text = 'gpus = "0"; tensor_parallel_size = 2; speculation = "medusa"; draft = "d"; prompt_lookup_max = 3;'
    reported = mistakes(launch(text + "max_num_seqs = 0; max_num_batched_tokens = 0"))
    assert [re.sub(r"\W.*", "", mistake.removeprefix("engine[0].launch.")) for mistake in reported] == [
        "gpus", "speculation", "max_num_seqs", "max_num_batched_tokens",
    ]  # fmt: skip


SQL = '[[engine]]\nname = "x"\nmodel = "llama-sql"\nurl = "http://127.0.0.1:9"\n'


def test_gpus_are_not_counted_against_a_size_that_could_not_be_read() -> None:
    reported = config_error(launch('gpus = [0, 1, 2]; pipeline_parallel_size = 2; tensor_parallel_size = "1"'))
    assert reported.startswith("engine[0].launch.tensor_parallel_size: '1' is not an integer")


# Profiles


def engine(name: str, text: str = "") -> Any:
    return parse_config(f'{MINIMAL}profile = "{name}"\n{text}').engine[0]


def launched(name: str, text: str = "") -> LaunchSettings:
    found = engine(name, text).launch
    assert isinstance(found, LaunchSettings)
    return found


def test_each_profile_has_its_name() -> None:
    assert set(PROFILES) == set(get_args(ProfileName))


@pytest.mark.parametrize("name", get_args(ProfileName))
def test_an_engine_of_a_profile_has_its_settings(name: str) -> None:
    profile = PROFILES[name]
    made = engine(name)
    assert made.max_model_len == profile["max_model_len"]
    assert made.task == profile.get("task", "any")
    assert made.launch == LaunchSettings(**profile["launch"])


def test_the_engine_overrides_its_profile_field_by_field() -> None:
    text = 'max_model_len = 4096\n[engine.launch]\nnum_speculative_tokens = 2\nquantization = "awq"\n'
    made = engine("llama-chat", text)
    profile: dict[str, Any] = dict(PROFILES["llama-chat"]["launch"])
    assert (made.task, made.max_model_len) == ("chat", 4096)
    assert made.launch == LaunchSettings(**profile | {"num_speculative_tokens": 2, "quantization": "awq"})


def test_another_draft_keeps_the_rest_of_the_profile() -> None:
    profile = PROFILES["llama-code"]["launch"]
    made = launched("llama-code", '[engine.launch]\ndraft = "org/d"\n')
    assert (made.draft, made.num_speculative_tokens) == ("org/d", profile["num_speculative_tokens"])


@pytest.mark.parametrize("method", ["none", "ngram"])
def test_another_method_replaces_the_draft_of_the_profile(method: str) -> None:
    made = launched("llama-code", f'[engine.launch]\nspeculation = "{method}"\n')
    assert (made.speculation, made.draft, made.num_speculative_tokens) == (method, None, 4)
    assert made.target == PROFILES["llama-code"]["launch"]["target"]


def test_a_profile_may_come_from_the_environment() -> None:
    text = f'{MINIMAL}profile = "${{PROFILE:-llama-chat}}"\n'
    assert parse_config(text).engine[0].task == "chat"
    assert parse_config(text, PROFILE="llama-code").engine[0].task == "code"


def test_an_unknown_profile_is_the_only_mistake_reported() -> None:
    message = "engine[0].profile: 'llama' is none of llama-chat, llama-code, mistral, llama-70b-awq, llama-70b-fp8"
    assert config_error(f'{MINIMAL}profile = "llama"\n') == message
    assert mistakes(f"{MINIMAL}profile = 3\n") == (
        "engine[0].profile: 3 is none of " + message.partition("none of ")[2],
    )


def test_a_profile_does_not_hide_the_mistakes_of_its_engine() -> None:
    text = f'{MINIMAL}profile = "llama-70b-awq"\nlaunch = 3\n'
    assert config_error(text).startswith("engine[0].launch is not a table;")
    gpus = f'{MINIMAL}profile = "llama-70b-awq"\n[engine.launch]\ngpus = [0]\n'
    assert config_error(gpus) == f"engine[0].launch.gpus: names 1, but {GPUS} is 2; name 2, or change the sizes"


def test_a_profile_starts_one_engine_and_not_several_replicas() -> None:
    text = f'{MODEL}{ENGINE.replace("url =", "urls = [").strip()}, "http://b:1"]\nprofile = "llama-chat"\n'
    message = "engine[0].profile: 'llama-chat' needs an engine with one url; add an [[engine]] for each"
    assert config_error(text) == message


def test_a_draft_of_any_kind_counts_as_speculation_for_the_router() -> None:
    methods = {text: parse_config(launch(text)).engine[0].launch for text in (
        "", 'draft = "d"', 'speculation = "ngram"', 'speculation = "none"', 'draft = "d"; speculation = "eagle"',
    )}  # fmt: skip
    found = [made.speculation_method for made in methods.values() if made is not None]
    assert found == [None, "draft_model", "ngram", None, "eagle"]


def test_the_examples_of_the_documentation_are_valid() -> None:
    page = (ROOT / "docs" / "running-engines.md").read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 3
    models = f'{MODEL}[[model]]\nname = "llama-sql"\n'
    profiled, adapters, placed = (parse_config(f"{models}{text}{SQL}") for text in examples)
    assert profiled.engine[0].launch == LaunchSettings(
        **dict(PROFILES["llama-chat"]["launch"]) | {"gpus": [0], "num_speculative_tokens": 3}
    )
    assert placed.engine[0].launch == LaunchSettings(**PROFILES["llama-70b-awq"]["launch"], placement="ray")
    assert adapters.engine[0].launch is not None
    assert adapters.engine[0].launch.lora == {"sql": "/models/llama-sql-lora"}


def test_an_engine_that_ray_places_needs_no_url() -> None:
    text = MODEL + '[[engine]]\nname = "e"\nmodel = "llama"\n[engine.launch]\ntarget = "t"\nplacement = "ray"\n'
    (engine,) = parse_config(text).engine
    assert engine.addresses == []
    message = 'cannot be combined with placement = "ray", which chooses the GPUs; set tensor_parallel_size'
    assert config_error(f"{text}gpus = [0]") == f"engine[0].launch.gpus: {message}"


@pytest.mark.parametrize("address", ['url = "http://h:1"', 'urls = ["http://h:1", "http://h:2"]'])
def test_an_engine_that_ray_places_cannot_have_an_address(address: str) -> None:
    text = (
        f'{MODEL}[[engine]]\nname = "e"\nmodel = "llama"\n{address}\n[engine.launch]\ntarget = "t"\nplacement = "ray"\n'
    )
    (mistake,) = mistakes(text)
    assert "which decides where the engine serves; remove it" in mistake
