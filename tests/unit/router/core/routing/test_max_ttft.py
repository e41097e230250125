"""Whether an engine is expected to begin in time, and when one will be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.routing.max_ttft import MAX_APPOINTMENTS, UNKNOWN, Appointments, Forecast, parse_max_ttft, too_late
from router.errors import ApiError


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"500ms", 0.5), (b"0.5s", 0.5), (b"2s", 2.0), (b" 1.25s ", 1.25), (b"9999999s", 9999999.0), (b"0.001ms", 1e-6)],
)
def test_a_limit_is_a_number_and_a_unit(header: bytes, seconds: float) -> None:
    assert parse_max_ttft(header) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "header", [b"", b"500", b"0ms", b"0s", b"0.0s", b"-1s", b"1m", b"1 s", b".5s", b"1.s", b"nan", b"1s, 2s", b"1" * 9]
)
def test_anything_else_is_an_error(header: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse_max_ttft(header)
    assert (refused.value.status, refused.value.param) == (400, "X-Max-TTFT")


@pytest.mark.parametrize(
    ("forecast", "is_in_time"),
    [
        (Forecast(0.0, 0.5), True),
        (Forecast(0.25, 0.25), True),
        (Forecast(0.26, 0.25), False),
        (Forecast(0.0, 0.51), False),
        (UNKNOWN, True),
        (Forecast(9.0, None), True),
    ],
)
def test_wait_and_prompt_together_must_be_within_the_limit(forecast: Forecast, is_in_time: bool) -> None:
    assert forecast.is_in_time(0.5) is is_in_time


@pytest.mark.parametrize(
    ("forecasts", "seconds"),
    [
        ({"a": Forecast(3.0, 1.0)}, 2.0),
        ({"a": Forecast(3.0, 1.0), "b": Forecast(2.0, 1.5)}, 1.5),
        ({"a": Forecast(0.0, 2.5)}, None),  # the prompt alone takes longer
        ({"a": Forecast(0.0, 2.5), "b": Forecast(5.0, 2.0)}, 5.0),
        ({}, None),
    ],
)
def test_the_first_engine_that_will_be_in_time_counts(forecasts: dict[str, Forecast], seconds: float | None) -> None:
    assert Appointments().make(forecasts, 2.0, 100.0, tenant="acme", prompt=1) == seconds


LATE = {"a": Forecast(2.0, 1.0), "b": Forecast(2.0, 1.0)}


def test_requests_that_are_refused_together_come_back_one_after_the_other() -> None:
    appointments = Appointments()
    made = [appointments.make(LATE, 2.5, 100.0, tenant="acme", prompt=prompt) for prompt in range(6)]
    assert made == [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]
    # Those who were told 2.5 s are still expected, the others are over.
    later = {"a": Forecast(0.0, 3.0), "b": Forecast(0.0, 1.0)}
    assert appointments.make(later, 2.5, 104.0, tenant="acme", prompt=7) == pytest.approx(-0.5)
    assert appointments.make(LATE, 2.5, 200.0, tenant="acme", prompt=8) == 0.5


def test_a_request_that_comes_back_too_early_keeps_its_time_and_delays_nobody() -> None:
    appointments = Appointments()
    for now in (100.0, 100.1, 100.2):
        for prompt, seconds in ((1, 0.5), (2, 0.5), (3, 1.5)):
            waits = {name: Forecast(102.0 - now, 1.0) for name in "ab"}
            made = appointments.make(waits, 2.5, now, tenant="acme", prompt=prompt)
            assert made == pytest.approx(100.0 + seconds - now)


def test_the_requests_of_a_tenant_delay_no_other_tenant() -> None:
    appointments = Appointments()
    for prompt in range(1000):
        appointments.make(LATE, 2.5, 100.0, tenant="acme", prompt=prompt)
    assert appointments.make(LATE, 2.5, 100.0, tenant="beta", prompt=1) == 0.5


def test_an_engine_that_is_later_than_it_was_expected_postpones_the_time() -> None:
    appointments = Appointments()
    assert appointments.make({"a": Forecast(2.0, 1.0)}, 2.5, 100.0, tenant="acme", prompt=1) == 0.5
    assert appointments.make({"a": Forecast(7.0, 1.0)}, 2.5, 100.5, tenant="acme", prompt=1) == 5.5


def test_a_time_at_an_engine_that_does_not_take_work_any_more_is_replaced() -> None:
    appointments = Appointments()
    assert appointments.make({"a": Forecast(2.0, 1.0)}, 2.5, 100.0, tenant="acme", prompt=1) == 0.5
    assert appointments.make({"b": Forecast(4.0, 1.0)}, 2.5, 100.0, tenant="acme", prompt=1) == 2.5


def test_the_memory_is_bounded() -> None:
    appointments = Appointments()
    short = {"a": Forecast(2.0, 0.001)}
    for prompt in range(2 * MAX_APPOINTMENTS):
        appointments.make(short, 0.5, 100.0, tenant=f"tenant {prompt % 7}", prompt=prompt)
    assert len(appointments) == MAX_APPOINTMENTS


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.integers(0, 5), st.dictionaries(st.sampled_from("abc"), st.builds(
            Forecast, st.floats(0, 100), st.floats(0.1, 4)
        ), min_size=1)),
        max_size=40,
    ),
    st.floats(0.5, 3),
)  # fmt: skip
def test_nobody_is_told_to_come_before_an_engine_is_in_time(
    refusals: list[tuple[float, int, dict[str, Forecast]]], max_ttft: float
) -> None:
    appointments, now = Appointments(), 100.0
    for passed, prompt, forecasts in refusals:
        now += passed
        seconds = appointments.make(forecasts, max_ttft, now, tenant="acme", prompt=prompt)
        reachable = [each for each in forecasts.values() if each.prompt is not None and each.prompt <= max_ttft]
        assert (seconds is None) is (not reachable)
        if seconds is not None:
            assert any(
                Forecast(max(0.0, each.wait - seconds), each.prompt).is_in_time(max_ttft + 1e-9) for each in reachable
            )


@pytest.mark.parametrize(
    ("seconds", "retry_after"), [(0.2, 1), (1.0, 1), (1.01, 2), (-3.0, 1), (59.5, 60), (500.0, 60), (None, 60)]
)
def test_the_advice_is_in_whole_seconds_and_bounded(seconds: float | None, retry_after: int) -> None:
    refusal = too_late(0.5, seconds)
    assert (refusal.status, refusal.code, refusal.retry_after) == (429, "max_ttft_exceeded", retry_after)
    assert ("not even an idle one" in refusal.message) is (seconds is None)
