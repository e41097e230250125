"""The home of a request: the engine where the beginning of its prompt probably is, if nothing else is known.

Each engine has a weight, a hash of what the home is derived from and of its URL, and the engine with the highest weight
is the home (rendezvous hashing; Thaler and Ravishankar, 1998). So all routers agree without communication, and an
engine that is added or removed moves only its own share.
"""

import xxhash


def session_home(tenant: str, session: str) -> int:
    """What the home of a session's requests is derived from; a session belongs to its tenant."""
    return xxhash.xxh3_64_intdigest(f"session:{tenant}:{session}".encode())


def conversation_home(session_home: int, chain_home: int) -> int:
    """The same for one of several conversations in a session. `chain_home`: of its prompt, see PromptChain."""
    return xxhash.xxh3_64_intdigest(chain_home.to_bytes(8, "little"), session_home)


def rendezvous_weight(home: int, engine: str) -> int:
    """`engine`: what identifies it in all processes, whatever its place in the configuration."""
    return xxhash.xxh3_64_intdigest(engine.encode(), home)  # not Python's hash(), which differs between processes
