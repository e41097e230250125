"""The link with which `roundhouse up` lets the person at its terminal into the dashboard."""

from pathlib import Path

import httpx
import msgspec

from engines.plan import RouterSpec


class _Link(msgspec.Struct):
    path: str


async def make_sign_in_link(client: httpx.AsyncClient, router: RouterSpec) -> str | None:
    """A link that works once, see router.shared.credentials.sign_in_links; None without a key, or if there is none."""
    if router.admin_key_file is None:
        return None
    # Read again and not passed on: the plan is printed by a dry run.
    try:
        key = Path(router.admin_key_file).read_text(encoding="ascii").strip()
        response = await client.post(f"{router.url}/admin/sign-in-links", headers={"authorization": f"Bearer {key}"})
        response.raise_for_status()
        return router.url + msgspec.json.decode(response.content, type=_Link).path
    except (OSError, UnicodeDecodeError, httpx.HTTPError, msgspec.DecodeError):  # the rest works without
        return None
