"""Budgets of a tenant: the tokens and GPU seconds that it may use in a day and in a month, both of UTC.

What a request uses is known only when its generation ends. So a request is admitted while every budget has something
left, and what it used is added when it ends; the requests that run at that time may exceed the budget by what they use.

The counters are in Redis (router.shared.quota.budgets), where a script starts them anew with each day and month by
Redis' clock. That clock may be set back, or a failover may go to a server whose clock is behind. A counter that is
ahead by a day at most is kept for the day it stands for, so that a clock that jumps over midnight and back gives no
second budget. One that is further ahead was counted with a wrong clock: what was used then counts for the present day
and month.
"""

from math import ceil
from typing import Final, Literal

import msgspec

from router.core.quota.calendar_days import date_of, first_day_of
from router.errors import ApiError

BudgetKind = Literal["tokens_per_day", "tokens_per_month", "gpu_seconds_per_day", "gpu_seconds_per_month"]

DAY: Final = 86400
"""Seconds."""

MAX_DAYS_AHEAD: Final = 1
INSUFFICIENT_QUOTA: Final = "insufficient_quota"
"""OpenAI's `type` and `code` for a budget that is used up."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """The budgets of a tenant; None is unlimited."""

    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    gpu_seconds_per_day: int | None = None
    gpu_seconds_per_month: int | None = None

    @property
    def is_limited(self) -> bool:
        return self != Budget()


class BudgetUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has used in a day and in a month.

    - `now`: when that was read, in seconds since the epoch.
    - `day`: days since the epoch; `month`: 12 times the year, plus 0 for January to 11 for December.
    - `day_gpu_ms`, `month_gpu_ms`: milliseconds of generation, since Redis adds up integers exactly.
    """

    now: float
    day: int
    month: int
    day_tokens: int = 0
    day_gpu_ms: int = 0
    month_tokens: int = 0
    month_gpu_ms: int = 0

    def plus(self, tokens: int, gpu_ms: int) -> "BudgetUse":
        return msgspec.structs.replace(
            self,
            day_tokens=self.day_tokens + tokens,
            day_gpu_ms=self.day_gpu_ms + gpu_ms,
            month_tokens=self.month_tokens + tokens,
            month_gpu_ms=self.month_gpu_ms + gpu_ms,
        )

    def used(self, kind: BudgetKind) -> float:
        """Tokens, or seconds."""
        match kind:
            case "tokens_per_day":
                return self.day_tokens
            case "tokens_per_month":
                return self.month_tokens
            case "gpu_seconds_per_day":
                return self.day_gpu_ms / 1000
            case "gpu_seconds_per_month":
                return self.month_gpu_ms / 1000

    def resets_on(self, kind: BudgetKind) -> int:
        """The day with whose beginning a budget starts anew, as in `day`."""
        if kind.endswith("_day"):
            return self.day + 1
        year, month = divmod(self.month + 1, 12)
        return first_day_of(year, month + 1)


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a budget. `limit`, `used` and `remaining` in tokens or seconds; `resets_at` in RFC 3339."""

    budget: BudgetKind
    limit: int
    used: float
    remaining: float
    resets_at: str


def month_of(day: int) -> int:
    """The month of a day, both as in BudgetUse."""
    date = date_of(day)
    return date.year * 12 + date.month - 1


def use_at(use: BudgetUse | None, now: float) -> BudgetUse:
    """What counts at `now`, in seconds since the epoch; None: nothing was used. The script does the same in Redis."""
    today = int(now // DAY)
    month = month_of(today)
    if use is None:
        return BudgetUse(now=now, day=today, month=month)
    if use.day > today + MAX_DAYS_AHEAD:
        return msgspec.structs.replace(use, now=now, day=today, month=month)
    day, month = max(use.day, today), max(use.month, month)
    same_day, same_month = day == use.day, month == use.month
    return BudgetUse(
        now=now,
        day=day,
        month=month,
        day_tokens=use.day_tokens if same_day else 0,
        day_gpu_ms=use.day_gpu_ms if same_day else 0,
        month_tokens=use.month_tokens if same_month else 0,
        month_gpu_ms=use.month_gpu_ms if same_month else 0,
    )


def budget_status(budget: Budget, use: BudgetUse) -> list[BudgetStatus]:
    """Each budget that is set."""
    return [
        BudgetStatus(
            budget=kind,
            limit=limit,
            used=round(use.used(kind), 3),
            remaining=round(max(0.0, limit - use.used(kind)), 3),
            resets_at=f"{date_of(use.resets_on(kind))}T00:00:00Z",
        )
        for kind, limit in _limits(budget)
        if limit is not None
    ]


def budget_error(budget: Budget, use: BudgetUse, reserve: float = 0.0) -> ApiError | None:
    """The error of a request that is over budget; None if nothing is used up. Of several, the one that resets last.

    `reserve`: the share of each budget that the request leaves to others.
    """
    # Before any text is made: this runs for every request of a tenant with budgets.
    exceeded = [
        kind for kind, limit in _limits(budget) if limit is not None and use.used(kind) >= (1 - reserve) * limit
    ]
    if not exceeded:
        return None
    kind = max(exceeded, key=use.resets_on)
    (status,) = [status for status in budget_status(budget, use) if status.budget == kind]
    what = f"{status.limit} {kind.replace('gpu', 'GPU').replace('_', ' ')}"
    if status.remaining:
        told = f"Batches leave {reserve:.0%} of the quota of {what} to other requests, and the rest is used."
    else:
        told = f"You exceeded your current quota: {what}."
    return ApiError(
        429,
        f"{told} It resets at {status.resets_at}.",
        kind=INSUFFICIENT_QUOTA,
        code=INSUFFICIENT_QUOTA,
        retry_after=max(1, ceil(use.resets_on(kind) * DAY - use.now)),
        reason=f"{kind}_budget",
    )


def _limits(budget: Budget) -> tuple[tuple[BudgetKind, int | None], ...]:
    return (
        ("tokens_per_day", budget.tokens_per_day),
        ("tokens_per_month", budget.tokens_per_month),
        ("gpu_seconds_per_day", budget.gpu_seconds_per_day),
        ("gpu_seconds_per_month", budget.gpu_seconds_per_month),
    )
