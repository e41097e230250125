"""Which models are made, of what shape, and how long each may learn."""

from dataclasses import dataclass

from engines.tiny.architecture import Shape
from engines.tiny.corpus import Task
from engines.tiny.training import Course
from engines.tiny.vocabulary import LLAMA, MISTRAL, QWEN

VERSION = "tiny-1"
"""Of the models that this code makes; another version makes them anew. The configuration names it as their revision."""

PASSAGES = 80
"""Texts a task; few enough to be learned by heart, so that answers are words rather than noise."""

QUESTIONS = 320
"""Questions put to a target, whose answers its drafts learn."""


@dataclass(frozen=True)
class Plan:
    """One model: a target where `target` is None, else a draft for the target of that name.

    `share` is its part of the time that all training may take; `tasks` are what it is trained on.
    """

    name: str
    shape: Shape
    course: Course
    share: float
    target: str | None = None
    tasks: tuple[Task, ...] = ("chat", "code")


TARGET_COURSE = Course(steps=250, rate=5e-3)
DRAFT_COURSE = Course(steps=50, rate=2e-3)

MODELS = (
    Plan("llama", Shape("Llama", LLAMA, hidden=128, layers=2), TARGET_COURSE, 0.29),
    Plan("qwen-draft", Shape("Qwen2", QWEN, hidden=128, layers=1), DRAFT_COURSE, 0.14, "llama"),
    Plan("code-draft", Shape("Llama", LLAMA, hidden=128, layers=1), DRAFT_COURSE, 0.14, "llama", ("code",)),
    Plan("mistral", Shape("Mistral", MISTRAL, hidden=128, layers=2), TARGET_COURSE, 0.29),
    Plan("mistral-draft", Shape("Mistral", MISTRAL, hidden=128, layers=1), DRAFT_COURSE, 0.14, "mistral"),
)
"""In the order they are made: a target before its drafts."""
