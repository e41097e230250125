"""Where an engine has broken a stream off: what is known without its events."""

from router.core.endpoints.continuation.stream_so_far import MAX_LITERAL_EVENTS
from router.core.endpoints.recording.choices_recorder import ChoicesRecorder
from router.flow.attempts.continuation.seam import Seam
from router.net.client.errors import EngineError
from router.upstream.engine import Engine
from router.upstream.engine_config import EngineConfig
from tests.support.endpoints import choices_recorder
from tests.support.factories import chat, chat_event, choice_delta, encode_event


def new_engine(name: str) -> Engine:
    return Engine(EngineConfig(name=name, model="m", task="any", url=f"http://{name}", served_model="m"))


def recorder_of(*texts: str) -> ChoicesRecorder:
    recorder = choices_recorder(1 << 20)
    for number, text in enumerate(texts):
        recorder.feed(encode_event({**chat_event(choice_delta(content=text)), "created": number}))
    return recorder


def test_the_engines_that_can_go_on_are_found_before_the_stream_is_read() -> None:
    failed, drained, other = new_engine("failed"), new_engine("drained"), new_engine("other")
    drained.drained = True
    recorder = recorder_of(*["a"] * 2 * MAX_LITERAL_EVENTS)
    seam = Seam(chat(stream=True), recorder, failed, EngineError("reset", "gone"), dispatched_at=0.0)
    assert seam.able([failed, drained, other], [failed]) == [other]
    assert not seam.may_be_complete
    assert (seam.so_far, seam.obstacle) == (None, None)  # it was not read, which finds this obstacle:
    seam.read()
    assert seam.obstacle == "no-template"
