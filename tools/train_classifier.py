"""Rebuilds router/core/routing/classify_weights.json, and says how good it is.

    python tools/train_classifier.py --data PROMPTS.jsonl [...]

A data file has one JSON object a line: `prompt`, `task` ("code" or "chat") and optionally `source`. What is given with
--data stays where it is. The project's own data lies beside this script and is always used:

- `classifier_examples.jsonl` has labelled prompts.
- `classifier_documents.jsonl` has documents, each with requests for code and requests for chat. Each request is placed
  before and after its document, so the words of a document mean nothing and those of the request decide.
- `classifier_few_words.jsonl` has labelled prompts of a few words: greetings, tests of the connection, pieces of
  programs. They are only trained on: how many there are is arbitrary, and would move the threshold of all prompts.
- `classifier_corrections.jsonl` has the labels, by the SHA-256 of the prompt, of --data prompts whose own label is
  that of the benchmark's category and not of the request.
- `classifier_lexicon.json` has words in groups.


- The model is logistic regression with an L2 penalty, fitted by coordinate descent. A word's weight is its own weight
  plus those of its groups in the lexicon, so a language that no example names still counts as a language. Short and
  long prompts share a part of each weight, and have a part for themselves. The end of a long prompt is scored with the
  weights of short prompts, in training as in the classifier, so what short examples teach also applies there.
- The strength of the penalty and the threshold are chosen by cross-validation within what is trained on. The figures
  come from a second cross-validation around that, so no prompt has a part in anything that judges it. What is written
  in the end has learned from all examples; the test prompts are never trained on.
- Nothing is random but the folds, which are seeded, and weights are rounded: the same input gives the same file.
"""

import argparse
import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from router.core.routing.classifier_weights import Weight, Weights
from router.core.routing.classify import (
    END_WEIGHT,
    ONE_WORD,
    Classifier,
    chat_prior,
    feature,
    features,
    is_short,
    name_of,
    separate_end,
)
from router.core.types import Task

HERE = Path(__file__).resolve().parent
OUT = HERE.parent / "router" / "core" / "routing" / "classify_weights.json"
TESTS = [
    HERE.parent / "tests" / "unit" / "router" / "core" / "routing" / name
    for name in ("classify_prompts.jsonl", "classify_kinds.jsonl", "classify_confusable.jsonl", "classify_short.jsonl")
]

# Settled on by cross-validation over the examples; anything near them does as well.
LENGTH_SCALE = 1.5  # how freely the weights of short and of long prompts may part
MIN_COUNT = 2  # prompts that have to contain a feature before it gets a weight of its own
MIN_WEIGHT = (
    40  # in hundredths; features below it for both lengths are left out, which changes no figure and saves a third
)
TOLERANCE = 0.002
MAX_PASSES = 300
FOLDS = 5
INNER_FOLDS = 3
LINE_LENGTH = 115  # of the file, in bytes
# What is chosen among by cross-validation: the inverse of the penalty's strength, and log-odds added towards code.
STRENGTHS = (2.0, 4.0)
SHIFTS = (-0.15, 0.0, 0.15, 0.3)

COMPOSED = "composed"  # the source of prompts made of a document and a request
FEW_WORDS = "few words"
FEW_WORDS_SHARE = 0.3  # how much each of these prompts counts; with 1, their words lose what they say in longer prompts
ONLY_TRAINED_ON = (COMPOSED, FEW_WORDS)  # sources
ALL_PROMPTS, SHORT_PROMPTS, LONG_PROMPTS = "all", "short", "long"
# For which prompts; "own", "group" or "bias"; the name of the feature or the group.
Column = tuple[str, str, str]
Line = TypeVar("Line")


class Example(msgspec.Struct, frozen=True):
    """A labelled prompt; `source` says which collection it is from."""

    prompt: str
    task: Task
    source: str = "own"


class Document(msgspec.Struct, frozen=True):
    """A text, with requests about it that ask for code and others that do not."""

    document: str
    code: list[str]
    chat: list[str]


class Correction(msgspec.Struct, frozen=True):
    """The label of a prompt that is not in the repository; `sha256` is that of its UTF-8."""

    sha256: str
    task: Task


@dataclass(frozen=True, slots=True)
class Score:
    """How a set of prompts was judged."""

    count: int
    accuracy: float
    f1: float

    def __str__(self) -> str:
        return f"{self.count:5}  accuracy {self.accuracy:.3f}  F1 {self.f1:.3f}"


@dataclass(frozen=True, slots=True)
class Choice:
    """What cross-validation chooses."""

    strength: float
    shift: float


def read(path: Path) -> list[Example]:
    return read_lines(path, Example)


def read_lines(path: Path, type_: type[Line]) -> list[Line]:
    """The objects of a JSON-lines file. Raises msgspec.ValidationError where a line is not one."""
    return [msgspec.json.decode(line, type=type_) for line in path.read_bytes().splitlines() if line.strip()]


def composed(documents: Iterable[Document]) -> Iterator[Example]:
    """Every request before its document, and after it."""
    for entry in documents:
        requests: list[tuple[Task, str]] = [("code", request) for request in entry.code]
        requests += [("chat", request) for request in entry.chat]
        for task, request in requests:
            yield Example(f"{entry.document}\n\n{request}", task, COMPOSED)
            yield Example(f"{request}\n\n{entry.document}", task, COMPOSED)


def corrected(examples: Iterable[Example], corrections: Iterable[Correction]) -> Iterator[Example]:
    tasks = {correction.sha256: correction.task for correction in corrections}
    for example in examples:
        task = tasks.get(hashlib.sha256(example.prompt.encode()).hexdigest(), example.task)
        yield Example(example.prompt, task, example.source)


def named(text: str) -> frozenset[str]:
    """The features of a text that may have a weight, by name.

    A lone letter or digit tells of the prompts at hand, not of the task; and of the pairs only those count that the
    classifier finds again by their name.
    """
    names = ((name_of(one), one) for one in features(text))
    return frozenset(
        name
        for name, one in names
        if feature(name) == one and (len(name) > 1 or not name.isalnum() or not name.isascii())
    )


def groups_of_words(path: Path) -> dict[str, tuple[str, ...]]:
    """The groups that each feature of the lexicon is in; its words are cut up exactly as prompts are."""
    groups: dict[str, dict[str, None]] = {}
    for group, words in json.loads(path.read_text(encoding="utf-8")).items():
        for word in words.split():
            for name in sorted(named(word)):
                # Of a word with signs in it the words count, and signs where they stand alone.
                if not name.startswith("~") and any(map(str.isalnum, name)) == any(map(str.isalnum, word)):
                    groups.setdefault(name, {})[group] = None
    return {name: tuple(of) for name, of in groups.items()}


def columns_of(
    prompts: Sequence[str], rows: Sequence[frozenset[str]], groups: dict[str, tuple[str, ...]]
) -> dict[Column, list[tuple[int, float]]]:
    """The design matrix by column, scaled as `Classifier.classify` scales.

    A feature and a group have a column for all prompts, and one more for the short or the long ones.
    """
    counts = Counter(name for row in rows for name in row)
    columns: dict[Column, dict[int, float]] = {}

    def add(number: int, row: frozenset[str], of_length: str, factor: float) -> None:
        known = sorted(name for name in row if counts[name] >= MIN_COUNT or name in groups)
        scale = factor / math.sqrt(len(known) or 1)
        cells = [("own", name, scale) for name in known if counts[name] >= MIN_COUNT]
        together = Counter(group for name in known for group in groups.get(name, ()))
        cells += [("group", group, scale * times) for group, times in together.items()]
        for kind, name, value in cells:
            for prompts_of, amount in ((ALL_PROMPTS, value), (of_length, value * LENGTH_SCALE)):
                column = columns.setdefault((prompts_of, kind, name), {})
                column[number] = column.get(number, 0.0) + amount

    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        of_length = SHORT_PROMPTS if is_short(prompt) else LONG_PROMPTS
        add(number, row, of_length, 1.0)
        end = None if is_short(prompt) else separate_end(prompt)
        if end is not None:
            add(number, named(end), SHORT_PROMPTS, END_WEIGHT)
        columns.setdefault((of_length, "bias", ""), {})[number] = LENGTH_SCALE
    return {key: list(column.items()) for key, column in sorted(columns.items())}


def train(examples: Sequence[Example], groups: dict[str, tuple[str, ...]], choice: Choice) -> Weights:
    """Fits the model: each column in turn takes a Newton step under a bound of the curvature, so the loss falls."""
    rows = [named(example.prompt) for example in examples]
    columns = columns_of([example.prompt for example in examples], rows, groups)
    target = [float(example.task == "code") for example in examples]
    cost = [choice.strength * (FEW_WORDS_SHARE if one.source == FEW_WORDS else 1) for one in examples]
    counts = Counter(name for row in rows for name in row)
    known = (sum(counts[name] >= MIN_COUNT or name in groups for name in row) for row in rows)
    margin = [-chat_prior(number) for number in known]  # the classifier adds the prior, so no weight has to
    probability = [1 / (1 + math.exp(-one)) for one in margin]
    bias_column = [(number, 1.0) for number in range(len(examples))]
    weight = dict.fromkeys(columns, 0.0)
    curvature = {key: 1 + sum(cost[i] * x * x for i, x in column) / 4 for key, column in columns.items()}
    bias = 0.0

    def move(column: Iterable[tuple[int, float]], step: float) -> None:
        for i, x in column:
            margin[i] += step * x
            probability[i] = 1 / (1 + math.exp(-margin[i]))

    for _ in range(MAX_PASSES):
        largest = 0.0
        for key, column in columns.items():
            gradient = weight[key] + sum([cost[i] * (probability[i] - target[i]) * x for i, x in column])
            step = -gradient / curvature[key]
            largest = max(largest, abs(step))
            if abs(step) > TOLERANCE / 10:
                weight[key] += step
                move(column, step)
        step = -sum(cost[i] * (probability[i] - target[i]) for i, _ in bias_column) * 4 / sum(cost)
        bias += step
        move(bias_column, step)
        if max(largest, abs(step)) < TOLERANCE:
            break

    names = sorted({name for _, kind, name in columns if kind == "own"} | groups.keys())

    def bias_of(of_length: str) -> int:
        return round(100 * (bias + weight.get((of_length, "bias", ""), 0.0) * LENGTH_SCALE + choice.shift))

    def folded(of_length: str) -> dict[str, int]:
        def of(kind: str, name: str) -> float:
            alone = weight.get((of_length, kind, name), 0.0) * LENGTH_SCALE
            return weight.get((ALL_PROMPTS, kind, name), 0.0) + alone

        return {
            name: round(100 * (of("own", name) + sum(of("group", group) for group in groups.get(name, ()))))
            for name in names
        }

    short, long = folded(SHORT_PROMPTS), folded(LONG_PROMPTS)
    weights = {name: Weight(short[name], long[name]) for name in names}
    kept = {name: both for name, both in weights.items() if max(map(abs, both)) >= MIN_WEIGHT}
    return Weights(bias=Weight(bias_of(SHORT_PROMPTS), bias_of(LONG_PROMPTS)), features=kept)


def packed_weights(weights: Weights) -> bytes:
    """As JSON, sorted by name, in lines of about LINE_LENGTH characters, so that a difference can be read."""
    # No name has a digit before a symbol, so this is the end of an item.
    return re.sub(rb"(.{,%d}\d\],)" % LINE_LENGTH, rb"\1\n", msgspec.json.encode(weights)) + b"\n"


def score(judged: Iterable[tuple[Task, Task]]) -> Score:
    """Accuracy, and F1 of "code", of pairs of (truth, verdict)."""
    pairs = Counter(judged)
    right, total = pairs["code", "code"] + pairs["chat", "chat"], pairs.total()
    said_or_true = 2 * pairs["code", "code"] + pairs["code", "chat"] + pairs["chat", "code"]
    return Score(total, right / max(total, 1), 2 * pairs["code", "code"] / max(said_or_true, 1))


def judge(classifier: Classifier, examples: Iterable[Example]) -> list[tuple[Example, Task]]:
    return [(example, classifier.classify(example.prompt).task) for example in examples]


def split(examples: Sequence[Example], folds: int, seed: int) -> Iterator[tuple[list[Example], list[Example]]]:
    """Each fold once as the second list, and all others as the first.

    Composed prompts are only trained on, since those of one document are alike and would flatter the figures; so are
    those of a few words.
    """
    always_kept = [example for example in examples if example.source in ONLY_TRAINED_ON]
    shuffled = [example for example in examples if example.source not in ONLY_TRAINED_ON]
    random.Random(seed).shuffle(shuffled)
    for fold in range(folds):
        kept = [example for place, example in enumerate(shuffled) if place % folds != fold]
        yield kept + always_kept, shuffled[fold::folds]


def choose(examples: Sequence[Example], groups: dict[str, tuple[str, ...]]) -> Choice:
    """The choice with the highest F1 in a cross-validation of these examples alone."""
    best = (-1.0, Choice(STRENGTHS[0], SHIFTS[0]))
    for strength in STRENGTHS:
        scored: list[tuple[Task, float]] = []
        for kept, left_out in split(examples, INNER_FOLDS, seed=0):
            classifier = Classifier(train(kept, groups, Choice(strength, 0.0)))
            scored += [
                (example.task, math.fsum(part for name, part in classifier.explain(example.prompt) if name != ONE_WORD))
                for example in left_out
            ]
        for shift in SHIFTS:
            f1 = score((task, "code" if log_odds + shift > 0 else "chat") for task, log_odds in scored).f1
            best = max(best, (f1, Choice(strength, shift)), key=lambda one: one[0])
    return best[1]


def cross_validate(
    examples: Sequence[Example], groups: dict[str, tuple[str, ...]], repeats: int
) -> list[tuple[Example, Task]]:
    """Every example judged `repeats` times by a model that has not seen it, nor was chosen by it."""
    judged: list[tuple[Example, Task]] = []
    for seed in range(1, repeats + 1):
        for fold, (kept, left_out) in enumerate(split(examples, FOLDS, seed), 1):
            choice = choose(kept, groups)
            judged += judge(Classifier(train(kept, groups, choice)), left_out)
            print(f"\rround {seed}, fold {fold}: {choice}", end="", flush=True)
    print("\r" + " " * 60, end="\r")
    return judged


def report(title: str, judged: Sequence[tuple[Example, Task]]) -> None:
    print(f"{title:44}{score((example.task, said) for example, said in judged)}")
    own = [(example, said) for example, said in judged if example.source == "own"]
    given = [(example, said) for example, said in judged if example.source != "own"]
    if own and given:
        print(f"  {'given with --data':42}{score((example.task, said) for example, said in given)}")
    for source in sorted({example.source for example, _ in judged}):
        part = score((example.task, said) for example, said in judged if example.source == source)
        print(f"  {source:42}{part.count:5}  accuracy {part.accuracy:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Rebuild the weights of the task classifier.")
    parser.add_argument("--data", nargs="*", type=Path, default=[], help="labelled prompts, JSON lines")
    parser.add_argument("--examples", type=Path, default=HERE / "classifier_examples.jsonl", help="the project's own")
    parser.add_argument("--documents", type=Path, default=HERE / "classifier_documents.jsonl", help="with requests")
    parser.add_argument("--few-words", type=Path, default=HERE / "classifier_few_words.jsonl", help="short prompts")
    parser.add_argument("--corrections", type=Path, default=HERE / "classifier_corrections.jsonl", help="of --data")
    parser.add_argument("--lexicon", type=Path, default=HERE / "classifier_lexicon.json", help="words in groups")
    parser.add_argument("--test", nargs="*", type=Path, default=TESTS, help="prompts that are only ever tested on")
    parser.add_argument("--repeats", type=int, default=1, help="rounds of cross-validation; 0 skips it")
    parser.add_argument("--out", type=Path, default=OUT, help="where the weights go")
    parser.add_argument("--errors", action="store_true", help="show what cross-validation got wrong")
    arguments = parser.parse_args()

    corrections = read_lines(arguments.corrections, Correction)
    examples = [example for path in arguments.data for example in corrected(read(path), corrections)]
    examples += read(arguments.examples)
    examples += [Example(one.prompt, one.task, FEW_WORDS) for one in read(arguments.few_words)]
    examples += composed(read_lines(arguments.documents, Document))
    groups = groups_of_words(arguments.lexicon)

    if arguments.repeats:
        judged = cross_validate(examples, groups, arguments.repeats)
        report(f"nested cross-validation, {FOLDS} folds x {arguments.repeats}", judged)
        if arguments.errors:
            wrong = Counter((example.task, example.prompt[:150]) for example, said in judged if said != example.task)
            for (task, prompt), times in wrong.most_common():
                print(f"  {times} x {task}: {prompt!r}")
    choice = choose(examples, groups)
    weights = train(examples, groups, choice)
    classifier = Classifier(weights)
    print(choice)
    for path in arguments.test:
        report(path.name, judge(classifier, read(path)))

    packed = packed_weights(weights)
    arguments.out.write_bytes(packed)
    print(f"{arguments.out.name}: {len(weights.features)} features, {len(packed)} bytes")


if __name__ == "__main__":
    main()
