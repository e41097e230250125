"""YAML documents in which a key that is given twice is an error."""

from typing import Any

import yaml


class UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys in one map."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if len(set(keys)) < len(keys):
            raise yaml.constructor.ConstructorError(None, None, "a key is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load_all(text: str) -> list[dict[str, Any]]:
    """The documents of a text. Raises yaml.YAMLError."""
    return [document for document in yaml.load_all(text, Loader=UniqueKeyLoader) if document is not None]
