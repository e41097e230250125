"""The settings of the watchdog reach it through the plan of `roundhouse up`."""

from pathlib import Path

import msgspec

from engines.plan import UpPlan
from engines.watchdog.settings import WatchdogSpec
from router.commands.engines.engine_plan import build_plan
from router.settings import Settings, parse

MODEL = '[[model]]\nname = "m"\n[[engine]]\nname = "e"\nmodel = "m"\nurl = "http://127.0.0.1:1"\n'


def planned(settings: Settings) -> WatchdogSpec:
    plan = build_plan(settings, Path("roundhouse.toml"), "simulator", None)
    return msgspec.json.decode(msgspec.json.encode(plan), type=UpPlan).watchdog


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert planned(parse(MODEL, {})) == WatchdogSpec(continued_models=frozenset({"m"}))


def test_settings_arrive_in_seconds() -> None:
    table = '[watchdog]\nrestart_after = "12h"\ncooldown = "5m"\nmax_temperature = 80\n'
    assert planned(parse(table + MODEL, {})) == WatchdogSpec(
        restart_after=43200, cooldown=300, max_temperature=80, continued_models=frozenset({"m"})
    )


def test_streams_of_a_model_without_continuations_are_waited_for() -> None:
    without = MODEL.replace('name = "m"\n', 'name = "m"\nresume = false\n', 1)
    assert planned(parse(without, {})).continued_models == frozenset()
    assert planned(parse("[retry]\ncontinuations = 0\n" + MODEL, {})).continued_models == frozenset()


def test_an_engine_is_healthy_again_somewhat_above_the_share_at_which_it_is_degraded() -> None:
    assert WatchdogSpec(degraded_below=0.5).policy.recovered_above == 0.7
    assert WatchdogSpec(degraded_below=0.9).policy.recovered_above == 1.0
