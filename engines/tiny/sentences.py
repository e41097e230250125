"""The little grammar that composed prompts need."""

import random

_QUESTIONS = ("Can", "Could", "Do", "Have", "How", "Is", "Where", "Why", "Would")


def third_person(task: str) -> str:
    """`watch a door` becomes `watches a door`."""
    verb, space, rest = task.partition(" ")
    if verb.endswith(("s", "x", "z", "ch", "sh")):
        verb += "es"
    elif verb.endswith("y") and verb[-2] not in "aeo":
        verb = f"{verb[:-1]}ies"
    else:
        verb += "s"
    return verb + space + rest


def end_of_sentence(beginning: str, rng: random.Random) -> str:
    """A question mark after a question, else mostly a full stop."""
    return "?" if beginning.startswith(_QUESTIONS) else rng.choice((".", ".", "", "!"))
