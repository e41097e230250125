"""Requests for code, put together from parts."""

import random

from engines.tiny.prompt_topics import CHAT_TOPICS, CODE_ENDINGS, CODE_OBJECTS, CODE_TOPICS, CODE_VERBS, THINGS
from engines.tiny.sentences import end_of_sentence, third_person

CODE_FORMS = (
    "Write a Python function that {does}.",
    "Write a function that {does} and returns the result.",
    "Write a Python script that {does}",
    "write code that {does}",
    "Write a short program that {does}, with tests.",
    "Implement a function that {does}.",
    "Implement a Python class that {does}.",
    "Implement an algorithm that {does}",
    "Show me Python code that {does}.",
    "Show me how to write a function that {does}",
    "Give me a function which {does}. Use Python.",
    "Give me a Python snippet that {does}",
    "Can you write a method that {does}?",
    "Could you code a function that {does}?",
    "I need a Python function that {does}.",
    "I need a script that {does}, please",
    "Create a function that {does} without using any library.",
    "Please write Python code that {does}.",
    "python function that {does}",
    "javascript function that {does}",
    "How do I write a loop that {does} in Python?",
    "How can I code a function that {does}?",
    "Complete this Python function. It {does}.\ndef solve(",
    "Fix this function, which {does}:\ndef run(values):\n    return values",
    "Refactor this code, which {does}.",
    "Add type hints to a function that {does}.",
    "Write unit tests for a function that {does}.",
    "Write a generator that {does}.",
    "Write a decorator that {does}",
    "Write a recursive function that {does}.",
    "Define a Python function that {does}, and explain the code.",
    "Use the standard library to write a function that {does}.",
    "Show me a program which {does}",
    "Write a program which {does}.",
    "Build a command line tool that {does}",
    "Make a small program that {does}.",
    "Why does my function fail? It {does}.",
    "Optimize this loop, which {does}",
    "Translate this Java method to Python: it {does}.",
    "Python: {does}",
    "Write Python code so that it {does}.",
    "Write a Python package that {does}",
    "Use Python code to demonstrate how it {does}.",
    "python: {do}",
    "{do} in python",
    "{do} with a bash script",
    "How do I {do} in Python?",
    "How can I {do} with a few lines of code?",
    "My code should {do}, but it does not. Where is the bug?",
    "Use a loop to {do}.",
    "Show the code to {do}.",
    "Write the body of this function, so that it {does}:\ndef run(values):",
    "def main():\n    # {does}",
    "Write a test for a class that {does}.",
    "I have to write a program for school. It {does}. Help me with the code.",
    "Our backend needs an endpoint that {does}.",
    "Is there a one-liner that {does}?",
    "What is wrong with my method? It {does} twice.",
    "Change the code below. It now {does}, and should do nothing for empty input.",
    "Which Python library {does}? Show the code.",
)
"""`{does}` stands for a verb in the third person and its object, `{do}` for the same in the infinitive."""
CODE_REQUESTS = (
    "Write", "Please write", "Can you write", "Could you write", "Would you write", "I want", "I would like",
    "I need", "We need", "Give me", "Show me", "Provide", "Create", "Build", "Make", "Develop", "Design", "Implement",
    "Produce", "Generate", "Define", "Prepare", "Could you give me", "Could you build", "Can you show me",
    "Can you make", "Help me write", "Help me with", "Help me build", "Please make", "Please give me",
    "Please implement", "Try to write", "I am writing", "I am trying to write", "I am looking for", "Let us write",
    "Send me", "Complete", "Improve", "Review", "Debug", "Explain", "Document", "Simplify", "Test", "How do I write",
    "How would you write", "Start with",
)  # fmt: skip
PROGRAMS = (
    "a function", "a Python function", "a short function", "one function", "a recursive function", "a pure function",
    "a script", "a Python script", "a small script", "a shell script", "a class", "a Python class", "a base class",
    "a method", "a static method", "a program", "a Python program", "a short program", "a complete program", "code",
    "some code", "Python code", "some Python", "a few lines of code", "an example of code", "a code sample",
    "a library", "a package", "an algorithm", "an iterator", "a decorator", "a coroutine", "a context manager",
    "a callback", "a subroutine", "a procedure", "a lambda", "a parser", "an API endpoint", "a background job",
    "a JavaScript function", "a web app", "a service", "a bot", "a command", "a tool", "a plugin", "a wrapper",
    "a macro", "a unit test", "something in Python", "an implementation in Python", "a console application",
    "a notebook cell", "a cron job",
)  # fmt: skip
CONNECTORS = (" that {does}", " which {does}", " to {do}", ", it {does}", " so that it {does}")
CODE_TAILS = (
    *("",) * 8, " in Python", " using Python", ", with tests", ", please", ", and explain it", ", without any library",
    ", with comments", ", as fast as possible", ", with a docstring", " and returns the result", ", and handle errors",
)  # fmt: skip
CODE_TAILS = (
    *("",) * 8, " in Python", " using Python", ", with tests", ", please", ", and explain it",
    ", without any library", ", with comments", ", as fast as possible", ", with a docstring",
    " and returns the result", ", and handle errors",
)  # fmt: skip

_SHARE_OF_FORMS = 0.4  # the others are composed
_SHARE_OF_TOPICS = 0.3


def code_prompt(rng: random.Random) -> str:
    """A request for code."""
    task = rng.choice(CODE_TOPICS) if rng.random() < _SHARE_OF_TOPICS else _made_up_task(rng)
    if rng.random() < _SHARE_OF_FORMS:
        form = rng.choice(CODE_FORMS)
    else:
        request = rng.choice(CODE_REQUESTS)
        parts = rng.choice(PROGRAMS), rng.choice(CONNECTORS), rng.choice(CODE_TAILS)
        form = f"{request} {''.join(parts)}{end_of_sentence(request, rng)}"
    return form.format(do=task, does=third_person(task))


def _made_up_task(rng: random.Random) -> str:
    ending = rng.choice(("", "", f" {rng.choice(CODE_ENDINGS)}"))
    # A request for code can be about anything.
    objects = rng.choice((CODE_OBJECTS, THINGS, CHAT_TOPICS))
    return f"{rng.choice(CODE_VERBS)} {rng.choice(objects)}{ending}"
