"""Some histories of a GPU with faults; `python -m tests.world.gpu_history` plays more."""

import pytest

from tests.world.gpu_history import run_seed


@pytest.mark.parametrize("seed", range(1, 13))
def test_whatever_happens_requests_are_answered_and_one_engine_is_awake(seed: int) -> None:
    history = run_seed(seed)
    assert not history.wrong, "\n".join([*history.wrong, history.log])
    assert history.answered
