"""The HTML pages under /dashboard, and the files that they load.

A page is a skeleton: it contains no data of the cache, of tenants or of requests. Its scripts get those as JSON from
the admin API and insert them as text, never as HTML. There is no inline script, inline style or resource from outside,
so that the pages work under the Content-Security-Policy `default-src 'none'` with `'self'` for scripts, styles and
connections.
"""

from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from string import Template
from types import MappingProxyType
from typing import Final, Literal

from router.build_info import build_version

AuthMode = Literal["open", "keys", "header"]
"""How the router identifies tenants; see `auth.mode`. It decides which field the playground has."""

_CONTENT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_PACKAGE: Final = files(__package__)


def _read_static_files() -> Mapping[str, tuple[str, bytes]]:
    found = {}
    for file in sorted(_PACKAGE.joinpath("static").iterdir(), key=lambda file: file.name):
        content_type = _CONTENT_TYPES.get(file.name[file.name.rfind(".") :])
        if content_type is not None:
            found[file.name] = (content_type, file.read_bytes())
    return MappingProxyType(found)


STATIC_FILES: Final = _read_static_files()
"""By name: the content type and the bytes of each file that the pages load from /dashboard/static/NAME."""


def dashboard_page(*, auth_mode: AuthMode = "open", tenants: Iterable[str] = ()) -> bytes:
    """The dashboard, for a viewer who is signed in. `tenants`: names that its search fields suggest."""
    options = "".join(f'<option value="{escape(name)}">' for name in sorted(tenants))
    return _render("dashboard", auth_mode=escape(auth_mode), tenant_options=options)


def login_page(error: str | None = None) -> bytes:
    """The form that asks for an admin key. `error`: why the last attempt failed, in a sentence."""
    if error is None:
        return _render("login", error="", described_by="")
    alert = f'<p class="form-error" id="login-error" role="alert">{escape(error)}</p>'
    return _render("login", error=alert, described_by='aria-describedby="login-error" aria-invalid="true"')


def home_page(url: str, *, auth_mode: AuthMode = "open", model: str = "MODEL") -> bytes:
    """What `/` shows to a browser. `url`: the router's, without a slash at its end; `model`: one for the example."""
    header = {
        "open": "",
        "keys": " \\\n  -H 'Authorization: Bearer KEY'",
        "header": " \\\n  -H 'X-Tenant-ID: TENANT'",
    }[auth_mode]
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Tell me about the sea."}}]}}'
    example = f"curl {url}/v1/chat/completions{header} \\\n  -d '{body}'"
    return _render("home", url=escape(url), example=escape(example))


def sign_in_page() -> bytes:
    """What a sign-in link opens: its script sends the token that stands after `#` in the address."""
    return _render("sign_in")


def closed_page() -> bytes:
    """For a router without `auth.admin_keys`, whose admin API is closed: it says how to open it."""
    return _render("closed")


def _render(name: str, **values: str) -> bytes:
    """`values` are HTML: what is not is escaped before."""
    template = Template(_PACKAGE.joinpath("templates", f"{name}.html").read_text(encoding="utf-8"))
    return template.substitute(version=escape(build_version()), **values).encode()
