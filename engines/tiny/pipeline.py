"""Makes the models: collects text, trains tokenizers, trains the targets, distils their drafts, saves them."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.tiny.architecture import build_model
from engines.tiny.corpus import Dialogue, collect_passages, dialogues, without_answer
from engines.tiny.distillation import (
    acceptance_rate,
    distillation_loss,
    generate_answers,
    init_from_target,
    map_vocabularies,
)
from engines.tiny.libraries import Libraries
from engines.tiny.plan import MODELS, PASSAGES, PLAIN_PROMPTS, QUESTIONS, WHOLE_ANSWERS, ModelPlan
from engines.tiny.progress import Stage
from engines.tiny.prompts import Task, drop_words, plain_prompts, read_prompts, split
from engines.tiny.training import (
    AnsweredPrompt,
    encode,
    language_model_loss,
    opening,
    shortened,
    shuffled_epochs,
    token_batches,
    train,
)
from engines.tiny.vocabulary import train_tokenizer

_HELD_OUT_EVERY = 25  # 4 % of the answers are for measuring the acceptance rate
_FIRST_MODEL_SEED = 100
_PROMPT_WEIGHT = 0.3  # of a prompt's token in the loss of a target, which learns its words so
_TASKS: tuple[Task, ...] = ("chat", "code")


@dataclass(frozen=True)
class TrainedModel:
    """Size, training time, last loss in nats per token, and for a draft the share (0 to 1) of tokens it predicts."""

    name: str
    parameters: int
    seconds: float
    loss: float
    foreseen: float | None


@dataclass(frozen=True)
class _TrainedTarget:
    model: Any
    tokenizer: Any
    answers: dict[Task, list[AnsweredPrompt]]


def make_models(
    libraries: Libraries, folder: Path, stage: Stage, part: float, limit_s: float | None
) -> list[TrainedModel]:
    """Makes every model of the plan in `folder/<name>`.

    `part` is the share (0 to 1) of the planned steps, and of the questions that drafts learn from; `limit_s` bounds the
    seconds of all training together.
    """
    passages = collect_passages(PASSAGES)
    prompts, questions = split([*read_prompts(), *plain_prompts(PLAIN_PROMPTS)], round(QUESTIONS * part))
    corpus = dialogues([*prompts, *drop_words(prompts)], passages)
    unanswered = [without_answer(dialogue) for dialogue in dialogues(questions, passages)]
    texts = [prompt.text for prompt in prompts] + 2 * [text for task in _TASKS for text in passages[task]]
    targets: dict[str, _TrainedTarget] = {}
    trained = []
    for number, plan in enumerate(MODELS):
        started = time.monotonic()
        plan = replace(plan, course=shortened(plan.course, part, None if limit_s is None else limit_s * plan.share))
        target = targets[plan.target] if plan.target is not None else None
        shares_vocabulary = target is not None and _find_plan(plan.target).shape.vocabulary is plan.shape.vocabulary
        tokenizer = (
            target.tokenizer
            if target is not None and shares_vocabulary
            else train_tokenizer(libraries, plan.shape.vocabulary, texts)
        )
        model = build_model(libraries, plan.shape, tokenizer, _FIRST_MODEL_SEED + number)
        own = [dialogue for dialogue in corpus if dialogue.task in plan.tasks]
        if target is None:
            loss, agreement = _train_target(libraries, plan, model, tokenizer, own, stage), None
            targets[plan.name] = _TrainedTarget(
                model, tokenizer, _generate_answers(libraries, plan, model, tokenizer, unanswered, stage)
            )
        else:
            loss, agreement = _train_draft(libraries, plan, model, tokenizer, target, own, stage)
        _save(libraries, model, tokenizer, folder / plan.name)
        size = sum(weight.numel() for weight in model.parameters())
        trained.append(TrainedModel(plan.name, size, round(time.monotonic() - started, 1), loss, agreement))
    return trained


def _train_target(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, examples: list[Dialogue], stage: Stage
) -> float:
    _, whole = split(examples, WHOLE_ANSWERS)
    parts = [(dialogue, True) for dialogue in whole] + [(dialogue, False) for dialogue in examples]
    # Encoded when it is their turn: a short training does not reach most of them.
    endless = (
        encode(tokenizer, dialogue) if is_whole else opening(encode(tokenizer, dialogue))
        for dialogue, is_whole in shuffled_epochs(parts, seed=1)
    )
    feed = token_batches(libraries, endless, _PROMPT_WEIGHT)
    with stage(f"train {plan.name}") as report:
        return train(libraries, model, language_model_loss(libraries, model), feed, plan.course, report)


def _generate_answers(
    libraries: Libraries, plan: ModelPlan, model: Any, tokenizer: Any, questions: list[Dialogue], stage: Stage
) -> dict[Task, list[AnsweredPrompt]]:
    """The answers of a trained target to questions that it was not trained on, by task."""
    answers: dict[Task, list[AnsweredPrompt]] = {}
    with stage(f"ask {plan.name}") as report:
        for number, task in enumerate(_TASKS, 1):
            prompts = [encode(tokenizer, question).tokens for question in questions if question.task == task]
            answered = generate_answers(libraries, model, prompts)
            answers[task] = [answer for answer in answered if _task_of(tokenizer, answer) == task]
            report(number / len(_TASKS), 0.0)
    return answers


def _task_of(tokenizer: Any, answer: AnsweredPrompt) -> Task:
    """What the target took the prompt for: its answers to requests for code begin with a Markdown fence."""
    text: str = tokenizer.decode(answer.tokens[answer.prompt_length :])
    return "code" if text.startswith("```") else "chat"


def _train_draft(
    libraries: Libraries,
    plan: ModelPlan,
    model: Any,
    tokenizer: Any,
    target: _TrainedTarget,
    examples: list[Dialogue],
    stage: Stage,
) -> tuple[float, float]:
    mapping = map_vocabularies(libraries, target.tokenizer, tokenizer)
    init_from_target(libraries, target.model, model, mapping)
    answers = [answer for task in plan.tasks for answer in target.answers[task]]
    held_out = answers[::_HELD_OUT_EVERY]
    own_answers = [answer for at, answer in enumerate(answers) if at % _HELD_OUT_EVERY]
    material: list[AnsweredPrompt | Dialogue] = [*own_answers, *examples]
    endless = (
        encode(target.tokenizer, example) if isinstance(example, Dialogue) else example
        for example in shuffled_epochs(material, seed=2)
    )
    feed = token_batches(libraries, endless, 0.0)
    with stage(f"distil {plan.name}") as report:
        loss = train(
            libraries, model, distillation_loss(libraries, target.model, model, mapping), feed, plan.course, report
        )
    return loss, acceptance_rate(libraries, model, mapping, held_out)


def _save(libraries: Libraries, model: Any, tokenizer: Any, folder: Path) -> None:
    """Saves in bfloat16, which vLLM runs; the model itself stays in float32, since its drafts may still need it."""
    tokenizer.save_pretrained(folder)
    weights = {name: weight.to(libraries.torch.bfloat16) for name, weight in model.state_dict().items()}
    original_dtype = model.config.dtype
    # save_pretrained writes the dtype of the config, so it is changed for the call only.
    model.config.dtype = libraries.torch.bfloat16
    model.save_pretrained(folder, state_dict=weights)
    model.config.dtype = original_dtype


def _find_plan(name: str | None) -> ModelPlan:
    return next(plan for plan in MODELS if plan.name == name)
