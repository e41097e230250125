"""The shape of JSON: what two responses of one kind have in common."""

from itertools import groupby


def shape(value: object, key: str = "") -> object:
    """Keys in order, types and nulls; runs of list items with equal shapes count as one."""
    if isinstance(value, dict):
        if key in ("top_logprobs", "prompt_logprobs"):  # keyed by tokens
            return {"*": sorted({str(shape(inner)) for inner in value.values()})}
        # A token's text decides whether a delta has text; the captured model often generated only special tokens.
        hidden = "content" if key == "delta" and isinstance(value.get("content"), str) and "role" not in value else None
        return [(name, shape(inner, name)) for name, inner in value.items() if name != hidden]
    if isinstance(value, list):
        return [item_shape for item_shape, _ in groupby(shape(item, key) for item in value)]
    return type(value).__name__
