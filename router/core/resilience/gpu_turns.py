"""Which engines of one GPU are awake: the rule by which they take turns.

A GPU has memory for some of the engines of its group; the others sleep. A request for one that sleeps waits. The rule
says which engines that are awake are to sleep, so that the one that is wanted most can wake up:

- The request that has waited longest decides which engine is wanted. Lines of batches decide only if no person waits.
- An engine without requests gives up its turn at once. Waiting for its next request costs more than it saves, however
  long a switch takes: see lab/gpu_turns.py.
- An engine with requests keeps its turn for `max_wait` seconds of that wait, and for `min_awake` seconds in any case.
  Then its new requests wait, those in flight end, and it sleeps. So requests for one engine are served together, and no
  model is starved.
- An operator may wake an engine up: it is next, and then keeps its turn for `min_awake` without requests, too.
- Lines of batches take no turn from people: their engine waits until the other one had no requests for `min_awake`. An
  engine that has only lines in flight gives up its turn to people at once.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class TurnRules(NamedTuple):
    """`capacity`: what the engines that are awake may need together. Times in seconds."""

    capacity: float
    min_awake: float
    max_wait: float


class GroupMember(NamedTuple):
    """An engine as all routers see it, at one instant. Instants in seconds, of one clock.

    - `need`: its part of the capacity.
    - `awake_since`: None while it sleeps.
    - `people`, `lines`: requests in flight, those of people and those of batches.
    - `used_at`: when its last request of a person ended.
    - `asked_at`, `line_at`: since when the longest wait for it lasts, of people and of lines; None: nobody waits.
    - `is_called`: an operator wants it to wake up. `kept_until`: it has done so, and keeps its turn until then.
    """

    name: str
    need: float
    awake_since: float | None
    people: int = 0
    lines: int = 0
    used_at: float = 0.0
    asked_at: float | None = None
    line_at: float | None = None
    is_called: bool = False
    kept_until: float = 0.0

    @property
    def is_wanted(self) -> bool:
        return self.is_called or self.asked_at is not None or self.line_at is not None

    @property
    def serves_people(self) -> bool:
        # Those that wait for an engine that is awake are sent to it in the next moment.
        return self.people > 0 or self.asked_at is not None


class Turn(NamedTuple):
    """`wakes`: the engine that is to wake up when those of `sleeps` are asleep. These get no new requests from now.

    Empty: none is.
    """

    wakes: str
    sleeps: tuple[str, ...]


def next_turn(members: Sequence[GroupMember], rules: TurnRules, now: float) -> Turn | None:
    """The switch that is due; None if none is, or none is possible yet."""
    wanted = _most_wanted(member for member in members if member.awake_since is None and member.is_wanted)
    if wanted is None:
        return None
    awake = [member for member in members if member.awake_since is not None]
    room = rules.capacity - sum(member.need for member in awake)
    sleeps: list[str] = []
    # Those that were used last stay, as in any cache.
    for member in sorted(awake, key=lambda each: (each.serves_people, each.used_at)):
        if room >= wanted.need:
            break
        if _may_sleep(member, wanted, rules, now):
            room += member.need
            sleeps.append(member.name)
    return Turn(wanted.name, tuple(sleeps)) if room >= wanted.need else None


def excess(members: Sequence[GroupMember], capacity: float) -> tuple[str, ...]:
    """The engines that are awake and for which there is no room any more: those that were used last stay."""
    awake = [member for member in members if member.awake_since is not None]
    need, found = sum(member.need for member in awake), []
    for member in sorted(awake, key=lambda each: (each.serves_people, each.used_at)):
        if need <= capacity:
            break
        need -= member.need
        found.append(member.name)
    return tuple(found)


def _most_wanted(members: Iterable[GroupMember]) -> GroupMember | None:
    def key(member: GroupMember) -> tuple[bool, bool, float]:
        since = member.asked_at if member.asked_at is not None else member.line_at
        return not member.is_called, member.asked_at is None, since or 0.0

    return min(members, key=key, default=None)


def _may_sleep(member: GroupMember, wanted: GroupMember, rules: TurnRules, now: float) -> bool:
    """Whether an engine that is awake is to give up its turn for the one that is wanted."""
    assert member.awake_since is not None
    if wanted.is_called:
        return True
    if now < member.kept_until:
        return False
    had_its_time = now - member.awake_since >= rules.min_awake
    if wanted.asked_at is not None:
        return not member.serves_people or (had_its_time and now - wanted.asked_at >= rules.max_wait)
    assert wanted.line_at is not None, "it is wanted"
    if member.serves_people or now - max(member.used_at, member.awake_since) < rules.min_awake:
        return False
    return not member.lines or now - wanted.line_at >= rules.max_wait


class Reconciled(NamedTuple):
    """`awake`: as in GroupMember.awake_since, by name. `strays`: engines that are awake without a turn."""

    awake: Mapping[str, float]
    strays: tuple[str, ...]


def reconcile(
    needs: Mapping[str, float], awake: Mapping[str, float], sleeping: Mapping[str, bool], capacity: float, now: float
) -> Reconciled:
    """What follows from what the engines say of themselves, which others may have put to sleep or woken up.

    `needs`: of all members, by name, in their order. `awake`: what was decided. `sleeping`: what engines say; those
    that say nothing stay as they are.
    """
    kept = {name: since for name, since in awake.items() if not sleeping.get(name, False)}
    room = capacity - sum(needs[name] for name in kept)
    strays = []
    for name, need in needs.items():
        if name in kept or sleeping.get(name, True):
            continue
        if need <= room:
            kept[name] = now
            room -= need
        else:
            strays.append(name)
    return Reconciled(kept, tuple(strays))
