"""How the answers of two engines differ."""

from engines.switch.shadow_report import Answer, compare_answers


def test_texts_lengths_and_times_are_compared() -> None:
    prompts = [("a", True), ("b", True), ("c", False)]
    old = [Answer(text="x", tokens=1, seconds=0.5), Answer(text="y", tokens=2, seconds=1), Answer(text="z", tokens=3)]
    new = [Answer(text="x", tokens=1, seconds=0.25), Answer(text="Y", tokens=4, seconds=1), Answer(text="Z", tokens=5)]
    report = compare_answers(prompts, old, new)
    assert (report.requests, report.same, report.different, report.deterministic_different) == (3, 1, 2, 1)
    assert (report.tokens_old, report.tokens_new) == (6, 10)
    assert (report.seconds_old, report.seconds_new) == (1.5, 1.25)
    assert [(one.prompt, one.deterministic, one.same) for one in report.comparisons] == [
        ("a", True, True), ("b", True, False), ("c", False, False),
    ]  # fmt: skip


def test_a_request_that_one_engine_did_not_answer_is_no_difference_and_counts_in_no_sum() -> None:
    failed = Answer(error="status 400", seconds=9)
    answered = Answer(text="x", tokens=1, seconds=1)
    report = compare_answers([("a", True), ("b", True)], [failed, answered], [answered, failed])
    assert (report.same, report.different, report.failed_old, report.failed_new) == (0, 0, 1, 1)
    assert (report.tokens_old, report.seconds_new) == (0, 0)


def test_long_texts_are_compared_completely_and_shown_shortened() -> None:
    old, new = Answer(text="x" * 5000), Answer(text="x" * 4999 + "y")
    report = compare_answers([("a", False)], [old], [new])
    assert report.different == 1
    assert len(report.comparisons[0].old.text) == 2000


def test_no_requests_give_an_empty_report() -> None:
    assert compare_answers([], [], []).requests == 0
