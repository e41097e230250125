"""lab/gpu_day.py: a few minutes of it."""

from lab.gpu_day import DayPlan, is_right, run


def test_every_request_is_answered_and_hits_wake_nobody() -> None:
    figures = run(DayPlan(hours=0.2, per_hour=300, again=0.5, kills=1, seed=1))
    assert is_right(figures)
    assert figures["answers"]["200 HIT"] > 0
    assert figures["longest_hit"] < 0.1
    assert figures["switches"] > 1
