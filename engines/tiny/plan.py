"""The models to make, their shapes, and the training time of each."""

from dataclasses import dataclass

from engines.tiny.architecture import ModelShape
from engines.tiny.prompts import Task
from engines.tiny.training import TrainingSchedule
from engines.tiny.vocabulary import LLAMA, MISTRAL, QWEN

VERSION = "tiny-3"
"""Version of the models; another version is rebuilt. Configurations use it as the model's revision."""

PASSAGES = 16
"""Texts per task; few enough for the models to memorize them, so that answers are words rather than noise."""

PLAIN_PROMPTS = 6000
"""Prompts per task that are put together from parts."""

WHOLE_ANSWERS = 10000
"""Prompts that a target is trained on with the whole answer. Of all, it learns how the answer begins."""

QUESTIONS = 400
"""Prompts that no target is trained on; its drafts are trained on its answers to them."""


@dataclass(frozen=True)
class ModelPlan:
    """One model: a target if `target` is None, else a draft for the target of that name.

    `share` is its part of the training time of all models; `tasks` are the tasks that it is trained on.
    """

    name: str
    shape: ModelShape
    course: TrainingSchedule
    share: float
    target: str | None = None
    tasks: tuple[Task, ...] = ("chat", "code")


TARGET_SCHEDULE = TrainingSchedule(steps=800, learning_rate=5e-3)
DRAFT_SCHEDULE = TrainingSchedule(steps=150, learning_rate=2e-3)

MODELS = (
    ModelPlan("llama", ModelShape("Llama", LLAMA, hidden=128, layers=2), TARGET_SCHEDULE, 0.29),
    ModelPlan("qwen-draft", ModelShape("Qwen2", QWEN, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "llama", ("chat",)),
    ModelPlan("code-draft", ModelShape("Llama", LLAMA, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "llama", ("code",)),
    ModelPlan("mistral", ModelShape("Mistral", MISTRAL, hidden=128, layers=2), TARGET_SCHEDULE, 0.29),
    ModelPlan("mistral-draft", ModelShape("Mistral", MISTRAL, hidden=128, layers=1), DRAFT_SCHEDULE, 0.14, "mistral"),
)
"""In the order in which they are made: a target before its drafts."""
