"""The rules of [[gpu]]: engines that take turns."""

import pytest

from router.settings import ConfigurationError, parse

_BASE = """
[cache]
url = "redis://127.0.0.1"
[[model]]
name = "m"
"""
_LAUNCH = '[engine.launch]\ntarget = "t"\n'


def engine(name: str, fields: str = 'sleep = "vllm"\n', url: str = "http://127.0.0.1:8000", rest: str = "") -> str:
    address = f'url = "{url}"\n' if url else ""
    return f'[[engine]]\nname = "{name}"\nmodel = "m"\n{address}{fields}{rest}'


def gpu(fields: str = "", name: str = "gpu0", engines: str = '["a", "b"]') -> str:
    return f'[[gpu]]\nname = "{name}"\nengines = {engines}\n{fields}'


TWO = engine("a") + engine("b")
MEMORY = engine("a", 'sleep = "vllm"\ngpu_memory = "14GiB"\n')


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (TWO + gpu(engines='["a"]'), "gpu[0].engines must have at least two engines, which take turns"),
        (TWO + gpu('awake = 1\nmemory = "22GiB"\n'), "gpu[0].awake: 1 cannot be combined with memory"),
        (TWO + gpu(engines='["a", "x"]'), "gpu[0].engines[1]: 'x' is not an engine"),
        (TWO + gpu(engines='["a", "a"]'), "'a' is already an engine of 'gpu0'; an engine belongs to one GPU"),
        (TWO + gpu() + gpu(name="gpu1"), "'a' is already an engine of 'gpu0'; an engine belongs to one GPU"),
        (TWO + engine("c") + engine("d") + gpu() + gpu(engines='["c", "d"]'), "gpu[1].name"),
        (TWO + gpu('min_awake = "-1s"\n'), "gpu[0].min_awake"),
        (engine("a", "") + engine("b") + gpu(), "engine[0].sleep is missing: the engine takes turns at 'gpu0'"),
        (engine("a", 'sleep = "process"\n') + engine("b") + gpu(), "engine[0].sleep: 'process' needs [engine.launch]"),
        (engine("a", 'sleep = "snore"\n') + engine("b") + gpu(), "engine[0].sleep"),
        (engine("a", 'sleep_call = "x"\n') + engine("b") + gpu(), "engine[0].wake_call is missing"),
        (engine("a", 'wake_call = "x"\n') + engine("b") + gpu(), "engine[0].sleep_call is missing"),
        (
            engine("a", 'sleep = "vllm"\nsleep_call = "x"\nwake_call = "y"\n') + engine("b") + gpu(),
            "engine[0].sleep: 'vllm' cannot be combined with sleep_call and wake_call",
        ),
        (
            engine("a", 'sleep_call = "x"\nwake_call = "y"\n', rest=_LAUNCH) + engine("b") + gpu(),
            "engine[0].sleep_call: is for engines that something else starts",
        ),
        (
            engine("a", "", "http://10.0.0.1:8000", _LAUNCH) + engine("b") + gpu(),
            "engine[0].url: 'http://10.0.0.1:8000' must be a loopback address",
        ),
        (
            engine("a", "", "", '[engine.launch]\ntarget = "t"\nplacement = "ray"\n') + engine("b") + gpu(),
            "engine[0].urls: must be one url",
        ),
        (
            engine("a", 'sleep = "vllm"\nurls = ["http://h:1", "http://h:2"]\n', "") + engine("b") + gpu(),
            "engine[0].urls: must be one url",
        ),
        (TWO + gpu('memory = "22GiB"\n'), "engine[0].gpu_memory is missing"),
        (MEMORY + engine("b") + gpu('memory = "12GiB"\n'), "engine[0].gpu_memory: '14GiB' is more than the memory"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_place(text: str, mistake: str) -> None:
    with pytest.raises(ConfigurationError) as failed:
        parse(_BASE + text, {})
    assert mistake in str(failed.value)


@pytest.mark.parametrize(
    "text",
    [
        TWO + gpu(),
        TWO + gpu("awake = 2\nwake_before_fallback = false\n"),
        engine("a", "", rest=_LAUNCH) + engine("b", "", "http://[::1]:1", _LAUNCH) + gpu(),
        engine("a", 'sleep = "process"\n', "http://10.0.0.1:8000", _LAUNCH) + engine("b") + gpu(),
        engine("a", 'sleep_call = "docker stop a"\nwake_call = "http://h/start"\n') + engine("b") + gpu(),
        MEMORY + MEMORY.replace('"a"', '"b"') + gpu('memory = "14GiB"\n'),
    ],
)
def test_a_valid_group_is_accepted(text: str) -> None:
    (group,) = parse(_BASE + text, {}).gpu
    assert group.capacity in (1.0, 2.0, 14 * 2**30)


def test_a_misspelt_engine_gets_a_hint() -> None:
    with pytest.raises(ConfigurationError, match="did you mean coder"):
        parse(_BASE + engine("coder") + engine("b") + gpu(engines='["codr", "b"]'), {})
