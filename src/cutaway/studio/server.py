"""The studio's application: the API, the page, and what is refused before either. It answers this machine only.

A request is bounded on its way: `connections.py` (number, time), `guard.py` (sender, token, content type), `bodies.py`
(size, time, JSON), `requests.py` (each field), `work_queue.py` (how many at once, how long), `trace_store.py` (memory),
`responses.py` (bytes that wait to be read). The numbers are in `limits.py`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

import cutaway
from cutaway.errors import CutawayError, UnknownNameError
from cutaway.studio.asgi import sentence_body
from cutaway.studio.guard import Guard
from cutaway.studio.limits import Limits
from cutaway.studio.routes import api
from cutaway.studio.studio import Studio
from cutaway.studio.work_queue import HTTPRefusal, WorkQueue

PAGE = Path(str(resources.files("cutaway.studio"))) / "page"
NOT_BUILT = "the page is not built; in the sources of cutaway: make web"
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {
            "type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}
        }}},
    }
    for status, description in (
        (400, "cannot be done"), (401, "the token is missing or wrong"), (403, "not from this machine or page"),
        (404, "not found, or no longer kept"), (408, "the body took too long"), (413, "too large"), (415, "not JSON"),
        (422, "invalid"), (429, "too many requests: see Retry-After"), (503, "took too long"),
    )
}  # fmt: skip


def server(studio: Studio, token: str, limits: Limits | None = None) -> Guard:
    """The ASGI application behind its guard, for uvicorn or a test; requests need the `token`."""
    limits = limits or studio.limits
    queue = WorkQueue(limits)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close()

    app = FastAPI(
        title="cutaway studio", version=cutaway.__version__, lifespan=life, docs_url=None, redoc_url=None,
        openapi_url="/api/openapi.json", responses=ERRORS,
        description="Models at work, with every value on the way. It answers this machine only, and only with "
        "its token: Authorization: Bearer …",
    )  # fmt: skip
    app.state.studio, app.state.queue = studio, queue
    app.include_router(api)
    _errors(app)
    _add_page(app)
    return Guard(app, token, limits)


def _errors(app: FastAPI) -> None:
    """Every error is answered with one sentence."""

    def answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
        return Response(sentence_body(sentence), status, headers, "application/json")

    @app.exception_handler(HTTPRefusal)
    async def refused(_: Request, error: HTTPRefusal) -> Response:
        return answer(error.status, str(error), error.headers)

    @app.exception_handler(CutawayError)
    async def ours(_: Request, error: CutawayError) -> Response:
        return answer(404 if isinstance(error, UnknownNameError) else 400, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part)[:100] for part in first["loc"] if part != "body")
        return answer(422, f"{where or 'the body'}: {first['msg'][0].lower()}{first['msg'][1:]}")

    @app.exception_handler(Exception)
    async def fault(request: Request, _: Exception) -> Response:
        """A bug of ours; uvicorn logs its traceback."""
        return answer(500, f"internal error at {request.url.path}; the studio's terminal shows the traceback")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{error.detail}".lower(), error.headers)


def _add_page(app: FastAPI) -> None:
    """Adds the page to the app, as it was built: one address, since its views differ only behind the #."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if not (PAGE / "index.html").is_file():
            return JSONResponse({"error": NOT_BUILT}, 503)
        return FileResponse(PAGE / "index.html")

    if (PAGE / "assets").is_dir():
        app.mount("/assets", StaticFiles(directory=PAGE / "assets"))
