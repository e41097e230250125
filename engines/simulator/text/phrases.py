"""The phrases that simulated answers are composed of."""

NOUNS = (
    "engine",
    "turntable",
    "cache",
    "signal",
    "river",
    "journey",
    "answer",
    "café",
    "idea",
    "morning",
    "theory",
    "garden",
    "platform",
    "library",
    "naïveté",
    "window",
    "harbour",
    "notebook",
    "question",
    "smörgåsbord",
    "bridge",
)
ADJECTIVES = (
    "quiet",
    "patient",
    "curious",
    "well-worn",
    "bright",
    "early",
    "careful",
    "déjà-vu",
    "simple",
    "distant",
    "warm",
    "remarkable",
    "modest",
    "cre\u0301me-coloured",
    "steady",
    "unhurried",
)
VERBS = (
    "carries",
    "follows",
    "explains",
    "reaches",
    "keeps",
    "remembers",
    "measures",
    "crosses",
    "answers",
    "turns",
    "balances",
    "illuminates",
    "outlasts",
    "welcomes",
)
WORDS = ("steam", "rivers", "patience", "numbers", "music", "weather", "Zürich", "this", "clockwork", "language")
SENTENCES = (
    "The {adj} {noun} {verb} the {noun2}, and that is usually enough.",
    "In short: a {noun} {verb} a {noun2} — but only when it is {adj}.",
    "As for “{word}”, think of a {adj} {noun} that {verb} every {noun2}.",
    "It costs about {number} €, or {number2} minutes, for each {noun}. 🙂",
    "Consider {word} first; the {noun} {verb} the {adj} {noun2} afterwards.",
    "Nobody expects the {noun} to be {adj}, yet it {verb} the {noun2}! 👩\u200d💻",
    "“{word}” reads like 机车 or пар to some, and like a {adj} {noun} to others.",
    "- **{word}**: the {noun} {verb} the {noun2}.",
)
BREAKS = (" ", " ", " ", "\n\n", "\n")
THOUGHTS = (
    "The user asks about {word}.",
    "First, what {verb} the {noun}?",
    "A {adj} {noun} would do, since it {verb} the {noun2}.",
    "Let me check {word} once more before I answer.",
)
SNIPPETS = (
    """\
def {f}({a}, {b}=None):
    '''Return the {noun} of `{a}`.'''
    if {b} is None:
        return {a}["{noun}"]
    return [{x} for {x} in {a} if {x} != {b}]
""",
    """\
class {c}:
    def __init__(self, {a}: int) -> None:
        self.{a} = {a}

    def {f}(self) -> str:
        return f'{{self.{a}!r}} is {adj}'
""",
    """\
for {x} in range({number}):
\tif {x} % {number2} == 0:
\t\tprint("{noun}", {x}, sep='\\t')
\telse:
\t\t{f}({x})
""",
    """\
async def {f}({a}):
    # the {adj} case first
    async with {a}.lock:
        {b} = await {a}.{x}()
    return {{'{noun}': {b}, "n": {number}}}
""",
)
OPENINGS = ("Here is one way to do it:", "This should work:", "Try this — it handles the {adj} case too:")
FUNCTIONS = ("compute_total", "parse_line", "load_all", "merge", "find_first", "to_json", "walk_tree")
CLASSES = ("Turntable", "Ledger", "Signal", "RingBuffer", "Visitor")
NAMES = ("items", "value", "path", "node", "limit", "key", "buffer", "row", "left", "acc")
