"""lab/gpu_turns.py: all requests are served, and what it says of the rules."""

from random import Random

from lab.gpu_turns import MODELS, Arrival, by_arrival, by_turns, conversations
from router.core.resilience.gpu_turns import TurnRules

RULES = TurnRules(1.0, 30.0, 120.0)
SWITCH = 3.0


def test_every_rule_serves_every_request_and_turns_lose_less_time() -> None:
    arrivals = conversations(6 * 3600, 200, Random(1))
    turns, first_come = by_turns(arrivals, RULES, SWITCH), by_arrival(arrivals, SWITCH)
    for outcome in (turns, first_come):
        assert sum(map(len, outcome.waits.values())) == len(arrivals)
        assert outcome.lost == outcome.switches * SWITCH
    assert turns.switches < first_come.switches
    assert max(map(max, turns.waits.values())) < RULES.max_wait + 120


def test_a_request_waits_for_one_switch_if_nobody_else_is_there() -> None:
    outcome = by_turns([Arrival(10.0, MODELS[1], 1.0), Arrival(100.0, MODELS[1], 1.0)], RULES, SWITCH)
    assert (outcome.switches, outcome.waits[MODELS[1]]) == (1, [SWITCH, 0.0])
