"""Access control: host, origin, token and body are checked before the application sees a request."""

import secrets
from urllib.parse import urlsplit

from cutaway.studio.asgi import App, Message, Receive, Send, answer
from cutaway.studio.bodies import Bodies, Disconnected, check_json, replayed, too_long
from cutaway.studio.limits import Limits
from cutaway.studio.responses import Responses
from cutaway.studio.work_queue import HTTPRefusal

HERE = ("127.0.0.1", "localhost", "::1")
TRUSTED = "trusted"
"""Set in the state of a request that came with the token: its connection is not closed to make room for others."""
NO_TOKEN = (
    "the studio's token is missing or wrong; open the address that `cutaway studio` printed, which ends in ?token=…, "
    "or send the token in the header Authorization: Bearer …"
)


class Guard:
    """Lets a request through if its Host is this machine (else a foreign page could ask, by a name of its own that
    resolves here: DNS rebinding), its Origin the studio's own page, its token right, and its body JSON of bounded size.
    """

    def __init__(self, app: App, token: str, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.authorization = f"bearer {token}".encode()
        self.bodies, self.responses = Bodies(limits), Responses(limits)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, self.responses.bounded(send))

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        body = bytearray()
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_sender(headers)
            self._check_token(scope, headers)
            has_body = scope["method"] in ("POST", "PUT", "PATCH")
            if has_body:
                self._check_type(headers)
            body = await self.bodies.read(receive)
            if has_body:
                check_json(body, self.limits)
            await self.app(_plainly_json(scope), replayed(body, receive), send)
        except HTTPRefusal as refused:
            await answer(send, refused.status, str(refused), refused.headers)
        except Disconnected:
            pass
        finally:
            self.bodies.release(body)

    def _check_sender(self, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if "@" in host or _hostname(f"http://{host}") not in HERE:
            raise HTTPRefusal(403, f"this studio answers at 127.0.0.1 and localhost only, not at {host[:100]!r}")
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            raise HTTPRefusal(403, f"pages of {origin[:100]!r} may not ask this studio")

    def _check_token(self, scope: Message, headers: dict[str, str]) -> None:
        """The page and its scripts need none: they hold nothing secret, and their own requests send it."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if secrets.compare_digest(f"{scheme.lower()} {token.strip()}".encode(), self.authorization):
            scope.setdefault("state", {})[TRUSTED] = True
        elif scope["path"] != "/" and not scope["path"].startswith("/assets/"):
            raise HTTPRefusal(401, NO_TOKEN)

    def _check_type(self, headers: dict[str, str]) -> None:
        kind, _, options = headers.get("content-type", "").partition(";")
        if kind.strip().lower() != "application/json":
            raise HTTPRefusal(415, "the body must be JSON: Content-Type: application/json")
        charset = options.replace(" ", "").replace('"', "").lower()
        if charset not in ("", "charset=utf-8") or headers.get("content-encoding", "identity") != "identity":
            raise HTTPRefusal(415, "the body must be JSON in UTF-8, and not compressed")
        length = headers.get("content-length", "0")
        if len(length) > 15 or int(length) > self.limits.body:
            raise too_long(self.limits)


def _plainly_json(scope: Message) -> Message:
    """The request with its content type in plain spelling, which is all that FastAPI takes."""
    headers = [header for header in scope["headers"] if header[0].lower() != b"content-type"]
    return {**scope, "headers": [*headers, (b"content-type", b"application/json")]}


def _hostname(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None
