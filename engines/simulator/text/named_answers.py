"""The answers that contain the name of their generation, by the prompts and requests that they belong to.

Theory. A named answer is no function of its prompt, and the ids of tokens do not tell its text. So an engine that gets
the beginning of such an answer, of another engine, finds the answer in the log of that engine.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from xxhash import xxh3_64_hexdigest

from engines.simulator.text.prompts import Prompt
from engines.simulator.text.tokens import encode_text


def _digest(ids: Sequence[int]) -> str:
    return xxh3_64_hexdigest(",".join(map(str, ids)).encode())


@dataclass(frozen=True, slots=True)
class NamedAnswer:
    """The `text` of the generation `name`, for the prompt with these numbers and digests of tokens and characters."""

    name: str
    text: str
    user: str
    tokens: int
    token_digest: str
    characters: int
    text_digest: str

    @classmethod
    def of(cls, name: str, text: str, user: str, prompt: Prompt) -> Self:
        encoded = prompt.text.encode("utf-8", "surrogatepass")
        return cls(
            name, text, user, len(prompt.tokens), _digest(prompt.tokens), len(prompt.text),
            xxh3_64_hexdigest(encoded),
        )  # fmt: skip

    @classmethod
    def parse(cls, name: str, fields: Mapping[str, Any]) -> Self:
        return cls(name=name, **fields)

    def fields(self) -> dict[str, Any]:
        return {
            "text": self.text, "user": self.user, "tokens": self.tokens,
            "token_digest": self.token_digest, "characters": self.characters, "text_digest": self.text_digest,
        }  # fmt: skip

    def is_begun_in(self, prompt: Prompt) -> bool:
        """Whether the prompt is this answer's with a part of the answer after it."""
        if prompt.from_ids:
            said = prompt.tokens[self.tokens :]
            return (
                bool(said)
                and tuple(encode_text(self.text)[: len(said)]) == said
                and _digest(prompt.tokens[: self.tokens]) == self.token_digest
            )
        if prompt.said is not None:
            return self.text.startswith(prompt.said) and _digest(prompt.base) == self.token_digest
        begun, base = prompt.text[self.characters :], prompt.text[: self.characters]
        return (
            bool(begun)
            and self.text.startswith(begun)
            and xxh3_64_hexdigest(base.encode("utf-8", "surrogatepass")) == self.text_digest
        )


class NamedAnswers:
    """Those in the logs of all engines of a folder, by the `user` of their requests."""

    def __init__(self, log: Path) -> None:
        """`log`: this engine's. The others' have the same ending; without an ending there are no others."""
        self._log = log
        self._offsets: dict[Path, int] = {}
        self._answers: dict[str, list[NamedAnswer]] = {}

    def find(self, prompt: Prompt, user: str) -> NamedAnswer | None:
        """The one whose beginning is in the prompt, for the same user."""
        for path in self._logs():
            self._read_new_lines(path)
        begun = [answer for answer in self._answers.get(user, ()) if answer.is_begun_in(prompt)]
        return begun[-1] if begun else None

    def _logs(self) -> Iterable[Path]:
        return sorted(self._log.parent.glob(f"*{self._log.suffix}")) if self._log.suffix else (self._log,)

    def _read_new_lines(self, path: Path) -> None:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the engine is still writing it
                self._offsets[path] = self._offsets.get(path, 0) + len(line)
                record = json.loads(line)
                if "answer" in record:
                    answer = NamedAnswer.parse(record["generation"], record["answer"])
                    self._answers.setdefault(answer.user, []).append(answer)
