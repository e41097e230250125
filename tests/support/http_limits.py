"""Limits of the tests' HTTP clients."""

from typing import Final

import httpx

# A server closes a connection that was idle for 5 seconds, and httpx would use it up to then.
LIMITS: Final = httpx.Limits(keepalive_expiry=2.0)
