"""What a switch changes of an engine: its models, and the revision that stands for their answers in the cache key."""

from typing import Literal

import msgspec

from engines.spec import EngineSpec, LaunchSpec


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """`revision` is the one of the public model; the rest is as in LaunchSpec."""

    target: str
    draft: str | None = None
    speculation: Literal["draft_model", "ngram", "eagle", "eagle3", "none"] | None = None
    heterogeneous_vocab: bool | None = None
    revision: str = ""

    def models(self) -> str:
        """For a person."""
        return self.target + (f" + {self.draft}" if self.draft is not None else "")


def configured_version(launch: LaunchSpec, revision: str) -> Version:
    return Version(
        target=launch.target, draft=launch.draft, speculation=launch.speculation,
        heterogeneous_vocab=launch.heterogeneous_vocab, revision=revision,
    )  # fmt: skip


def apply_version(spec: EngineSpec, version: Version) -> EngineSpec:
    """The spec with these models; its revision stays the configured one. It must have a `launch`."""
    assert spec.launch is not None
    launch = msgspec.structs.replace(
        spec.launch, target=version.target, draft=version.draft, speculation=version.speculation,
        heterogeneous_vocab=version.heterogeneous_vocab,
    )  # fmt: skip
    return msgspec.structs.replace(spec, launch=launch)
