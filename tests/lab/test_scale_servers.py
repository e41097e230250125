"""The simulation's event loop and servers, against the formulas of queueing theory."""

from math import factorial
from random import Random

import pytest

from lab.scale.batch_engine import BatchEngine
from lab.scale.event_loop import EventLoop
from lab.scale.servers import FifoServer
from lab.scale.speeds import LLAMA_8B_ON_H100, EngineSpeed, SpeedPoint, simulated_engine


def test_callbacks_run_in_the_order_of_their_time_and_then_of_their_scheduling() -> None:
    loop = EventLoop()
    seen: list[str] = []
    loop.after(2.0, seen.append, "late")
    loop.after(1.0, seen.append, "first")
    loop.after(1.0, seen.append, "second")
    loop.run(1.5)
    assert seen == ["first", "second"]
    assert loop.now == 1.5
    loop.run(3.0)
    assert seen == ["first", "second", "late"]


def mean_response(*, arrivals: float, service: float, cores: int, count: int) -> tuple[float, float]:
    """The mean time in a server with random arrivals and exponential service, and its utilization."""
    loop, random = EventLoop(), Random(7)
    server = FifoServer(loop, cores=cores)
    times: list[float] = []

    def arrive() -> None:
        asked = loop.now
        server.submit(random.expovariate(1 / service), lambda: times.append(loop.now - asked))
        if len(times) < count:
            loop.after(random.expovariate(arrivals), arrive)

    arrive()
    loop.run(1e9)
    # `run` ends at its limit; the last arrival is about count / arrivals.
    return sum(times) / len(times), server.busy / (count / arrivals) / cores


def test_one_server_has_the_response_time_of_m_m_1() -> None:
    response, utilization = mean_response(arrivals=0.7, service=1.0, cores=1, count=60_000)
    assert response == pytest.approx(1 / (1 - 0.7), rel=0.05)
    assert utilization == pytest.approx(0.7, rel=0.02)


def test_several_cores_have_the_response_time_of_m_m_c() -> None:
    cores, offered = 4, 3.0
    empty = sum(offered**n / factorial(n) for n in range(cores))
    busy = offered**cores / factorial(cores) * cores / (cores - offered)
    waits = busy / (empty + busy)  # Erlang C: the probability that a request waits
    response, _ = mean_response(arrivals=offered, service=1.0, cores=cores, count=60_000)
    assert response == pytest.approx(1 + waits / (cores - offered), rel=0.05)


def test_background_work_stretches_every_service_and_counts_as_utilization() -> None:
    loop, ended = EventLoop(), []
    server = FifoServer(loop)
    server.background = 0.5
    server.submit(1.0, lambda: ended.append(loop.now))
    loop.run(10.0)
    assert ended == [2.0]
    assert server.utilization(10.0) == pytest.approx(0.1 + 0.5)


def run_engine(speed: EngineSpeed, requests: list[tuple[float, int]], max_num_seqs: int = 256) -> list[float]:
    """When each request ends: by the time of its arrival and its tokens."""
    loop = EventLoop()
    engine = BatchEngine(loop, speed, max_num_seqs=max_num_seqs)
    ends = [0.0] * len(requests)

    def start(number: int, tokens: int) -> None:
        engine.start(tokens, lambda: None, lambda: ends.__setitem__(number, loop.now))

    for number, (at, tokens) in enumerate(requests):
        loop.after(at, start, number, tokens)
    loop.run(1e6)
    assert engine.running == engine.waiting == 0
    assert engine.tokens == sum(tokens for _, tokens in requests)
    return ends


def test_a_simulated_engine_takes_its_first_token_and_then_its_rate() -> None:
    assert run_engine(simulated_engine(0.1, 40), [(0.0, 41), (0.5, 1)]) == pytest.approx([1.1, 0.6])


def test_requests_of_a_batch_slow_each_other_down() -> None:
    speed = EngineSpeed(SpeedPoint(1, 0.0, 0.1), SpeedPoint(2, 0.0, 0.2))
    # Alone: 10 more tokens take 1 s. The second comes at 0.5 s, when 5 are left for the first, at half the speed.
    assert run_engine(speed, [(0.0, 11), (0.5, 11)]) == pytest.approx([1.5, 2.0])


def test_beyond_its_batch_an_engine_serves_in_the_order_of_arrival() -> None:
    ends = run_engine(simulated_engine(1.0, 10), [(0.0, 1), (0.1, 1), (0.2, 1)], max_num_seqs=1)
    assert ends == pytest.approx([1.0, 2.0, 3.0])


def test_the_assumed_engine_has_its_published_points_and_a_line_between_them() -> None:
    assert LLAMA_8B_ON_H100.at(100).between_tokens == pytest.approx(0.00757)
    assert LLAMA_8B_ON_H100.at(75).between_tokens == pytest.approx((0.00591 + 0.00757) / 2)
    assert LLAMA_8B_ON_H100.at(500).between_tokens == pytest.approx(2 * 0.01614)
