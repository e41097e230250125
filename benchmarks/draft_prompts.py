"""Prompts for measuring drafts: code, chat, and mathematics, which is in between.

Neither these forms nor these topics are among those that the small models are trained on (engines/tiny/prompts.py).
"""

import random

Kind = str

FORMS_AND_TOPICS: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "code": (
        (
            "I need a small Python module that {}.",
            "Could someone post code that {}?",
            "How might I program something that {}?",
            "Put together a utility that {}.",
            "Extend my program so that it {}.",
            "Fill in the body so that it {}.\ndef solve(data):",
            "Given an input file, write a program that {}.",
            "Rework my script until it {}.",
            "Code a helper which {}, with type hints.",
            "What would a Python snippet look like that {}?",
        ),
        (
            "parses command-line arguments",
            "merges overlapping intervals",
            "downloads a list of images",
            "rotates a matrix by ninety degrees",
            "validates email addresses",
            "plays a sound when a timer ends",
            "splits a large CSV into pieces",
            "converts Roman numerals to integers",
            "renames every photo in a directory",
            "solves a sudoku",
            "watches a folder for changes",
            "encodes a message with a Caesar cipher",
        ),
    ),
    "chat": (
        (
            "I would love to hear a story involving {}.",
            "Describe {} to someone who has never seen it.",
            "Is there a proverb about {}?",
            "My grandmother always talked about {}; why might that be?",
            "Any thoughts on {}?",
            "Which feelings come with {}?",
            "Compose a song for {}.",
            "When did you last think of {}?",
            "Who taught you about {}?",
            "Let's talk about {} for a while.",
        ),
        (
            "a winter market",
            "owls",
            "the harbour at dawn",
            "my neighbour's piano",
            "warm soup",
            "crossing a border",
            "thunderstorms",
            "the mayor's gardener",
            "learning to swim",
            "a forgotten village",
            "family quarrels",
            "patience",
        ),
    ),
    "mathematics": (
        (
            "Evaluate {}.",
            "Take me through {} step by step.",
            "How large is {}?",
            "Check my answer for {}, please.",
            "I am stuck on {}; what is the result?",
        ),
        (
            "the area of a trapezium",
            "the number of diagonals of a decagon",
            "the probability of drawing two aces",
            "the tangent to a parabola",
            "the roots of a quadratic",
            "the hypotenuse of a right triangle",
            "the average speed of a round trip",
            "the greatest common divisor of 48 and 180",
        ),
    ),
}
SHARES: dict[Kind, int] = {"code": 2, "chat": 2, "mathematics": 1}
"""Parts of the mixed load."""


def prompts_of(kind: Kind) -> list[str]:
    forms, topics = FORMS_AND_TOPICS[kind]
    return [form.format(topic) for form in forms for topic in topics]


def mixed_load(count: int, seed: int) -> list[tuple[Kind, str]]:
    """At most `count` distinct prompts of all kinds by their shares, in a shuffled order."""
    rng = random.Random(seed)
    whole = sum(SHARES.values())
    load = [
        (kind, prompt)
        for kind, share in SHARES.items()
        for prompt in rng.sample(prompts_of(kind), min(count * share // whole, len(prompts_of(kind))))
    ]
    rng.shuffle(load)
    return load
