"""The studio's server: the API of `studio.py` over HTTP, and the page. It answers this machine only."""

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

import cutaway
from cutaway.checkpoints.weights import raw_bytes
from cutaway.errors import CutawayError, UnknownNameError
from cutaway.seeing.render.serialize import json_safe
from cutaway.seeing.trace.trace import Trace
from cutaway.studio import slicing
from cutaway.studio.asgi import sentence_body
from cutaway.studio.guard import Guard
from cutaway.studio.limits import Limits
from cutaway.studio.requests import (
    BeamsRequest,
    GenerateRequest,
    NextRequest,
    NotesPageRequest,
    NotesRequest,
    RunRequest,
)
from cutaway.studio.studio import Studio
from cutaway.studio.work_queue import Deadline, HTTPRefusal, WorkQueue

PAGE = Path(str(resources.files("cutaway.studio"))) / "page"
NOT_BUILT = "the page is not built; in the sources of cutaway: make web"
T = TypeVar("T")
At = Annotated[str | None, Query(max_length=200, description="a slice: `0,2,:,1:4`; what is left out is whole")]
Cell = Annotated[str, Query(max_length=200, description="a number for each axis: `0,2,3,5`")]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": description,
        "content": {"application/json": {"schema": {
            "type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}
        }}},
    }
    for status, description in (
        (400, "what was asked for can't be done"), (401, "without the token"), (403, "not from here"),
        (404, "not there, or no longer"), (408, "the body took too long"), (413, "too large"), (415, "not JSON"),
        (422, "not understood"), (429, "too many at once: see Retry-After"),
        (503, "took too long"),
    )
}  # fmt: skip


def server(studio: Studio, token: str, limits: Limits | None = None) -> Guard:
    """The whole application: an ASGI app that uvicorn, or a test, can run. Only who has the `token` may ask it."""
    limits = limits or studio.limits
    desk = WorkQueue(limits)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        desk.close()

    app = FastAPI(
        title="cutaway studio", version=cutaway.__version__, lifespan=life, docs_url=None, redoc_url=None,
        openapi_url="/api/openapi.json", responses=ERRORS,
        description="Models at work, with every value on the way. It answers this machine only, and who has its token: "
        "Authorization: Bearer …",
    )  # fmt: skip
    _errors(app)

    async def done(request: Request, work: Callable[[Deadline], T]) -> T:
        return await desk.do(work, request.is_disconnected)

    @app.get("/api/models", tags=["models"])
    async def models() -> dict[str, Any]:
        """The models this studio was started with: what they are made of, and what they can do."""
        return {"models": studio.described}

    @app.post("/api/run", tags=["traces"])
    async def run(request: Request, asked: RunRequest) -> dict[str, Any]:
        """Run a text (or image) and keep every value on the way; with `edits`, changed on the way."""
        return await done(request, lambda ticket: studio.run(asked, ticket.check))

    @app.get("/api/traces/{number}", tags=["traces"])
    async def trace(number: str) -> dict[str, Any]:
        """What `run` said of this trace."""
        return studio.traces.get(number).info

    @app.get("/api/traces/{number}/values/{name}", tags=["traces"])
    async def value(
        request: Request, number: str, name: str, at: At = None, format: Literal["json", "binary"] = "json"  # noqa: A002
    ) -> Response:  # fmt: skip
        """One value, or a slice of it; `binary`: little-endian float32, its shape in the header X-Shape."""
        send = _binary if format == "binary" else _json
        return await done(request, lambda _: send(studio.traces.get(number).trace, name, at, limits))

    @app.get("/api/traces/{number}/explain/{name}", tags=["traces"])
    async def explain(request: Request, number: str, name: str, at: Cell) -> dict[str, Any]:
        """The sum behind one number, as a tree that can be added up again, and written out."""
        return await done(request, lambda _: studio.explain(number, name, at))

    @app.get("/api/traces/{number}/lens", tags=["traces"])
    async def lens(request: Request, number: str) -> dict[str, Any]:
        """What each block would already say: the head applied to what every block hands on."""
        return await done(request, lambda _: studio.lens(number))

    @app.get("/api/traces/{number}/rollout", tags=["traces"])
    async def rolled(request: Request, number: str) -> dict[str, Any]:
        """Attention rollout: how much of each token reaches each place through all blocks."""
        return await done(request, lambda _: studio.rollout(number))

    @app.get("/api/traces/{number}/html", tags=["traces"])
    async def offline(request: Request, number: str, view: Annotated[str, Query(max_length=4000)] = "") -> Response:
        """The trace as one page that needs nothing else: open it from disk, send it to somebody."""
        text = await done(request, lambda _: studio.html(number, view))
        headers = {"Content-Disposition": 'attachment; filename="trace.html"'}
        return Response(text, media_type="text/html", headers=headers)

    @app.post("/api/next", tags=["writing"])
    async def following(request: Request, asked: NextRequest) -> dict[str, Any]:
        """What may come next, plainly and as temperature, top-k, top-p and min-p leave it."""
        return await done(request, lambda _: studio.next(asked))

    @app.post("/api/beams", tags=["writing"])
    async def beams(request: Request, asked: BeamsRequest) -> dict[str, Any]:
        """Beam search as a tree: every candidate it looked at, and the texts it found."""
        return await done(request, lambda ticket: studio.beams(asked, ticket.check))

    @app.post("/api/generate", tags=["writing"], response_class=StreamingResponse)
    async def generate(asked: GenerateRequest) -> StreamingResponse:
        """A text as it is written, as server-sent events: `token`, then `done` (or `error`)."""
        events = desk.stream(lambda ticket: studio.generate(asked, ticket.check))
        first = await anext(events)  # what is wrong with the request has a status of its own
        return StreamingResponse(_sent(first, events), media_type="text/event-stream")

    @app.get("/api/notes", tags=["notes"])
    async def all_notes(request: Request) -> dict[str, Any]:
        """The worked examples of the lecture notes, recomputed, and the quiz with its demonstrations."""
        return await done(request, lambda _: studio.notes())

    @app.post("/api/notes/html", tags=["notes"])
    async def notes_page(request: Request, asked: NotesPageRequest) -> Response:
        """The notes as one page that needs nothing else."""
        text = await done(request, lambda _: studio.notes_page(asked))
        return Response(
            text, media_type="text/html", headers={"Content-Disposition": 'attachment; filename="notes.html"'}
        )

    @app.post("/api/notes/{number}", tags=["notes"])
    async def one_note(request: Request, number: int, asked: NotesRequest) -> dict[str, Any]:
        """One worked example with other numbers."""
        return await done(request, lambda _: studio.note(number, asked.inputs))

    _page(app)
    return Guard(app, token, limits)


def _binary(trace: Trace, name: str, at: str | None, limits: Limits) -> Response:
    part = slicing.part(trace[name], at, limits.numbers).float().contiguous()
    headers = {"X-Shape": ",".join(map(str, part.shape))}
    return Response(bytes(raw_bytes(part)), media_type="application/octet-stream", headers=headers)


def _json(trace: Trace, name: str, at: str | None, limits: Limits) -> Response:
    part = slicing.part(trace[name], at, limits.numbers_as_text)
    labels = [None if words is None or len(words) > 1000 else list(words) for words in trace.labels(name)]
    return JSONResponse({
        "name": name, "axes": trace.axes(name), "formula": trace.formula(name), "labels": labels,
        "shape": list(part.shape), "values": json_safe(part),
    })  # fmt: skip


async def _sent(first: Mapping[str, Any], rest: AsyncIterator[Mapping[str, Any]]) -> AsyncIterator[bytes]:
    yield _event(first)
    try:
        async for each in rest:
            yield _event(each)
    except (CutawayError, HTTPRefusal) as error:
        yield _event({"event": "error", "error": str(error)})


def _event(data: Mapping[str, Any]) -> bytes:
    rest = {key: value for key, value in data.items() if key != "event"}
    return f"event: {data['event']}\ndata: {json.dumps(json_safe(rest), ensure_ascii=False)}\n\n".encode()


def _errors(app: FastAPI) -> None:
    """Every mistake is one sentence."""

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
        """Ours, which the log tells of."""
        return answer(500, f"a fault of the studio's, at {request.url.path}; what it printed says more")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> Response:
        return answer(error.status_code, f"{error.detail}".lower(), error.headers)


def _page(app: FastAPI) -> None:
    """The page as it was built; its views are told apart behind the #, so there is one address."""

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if not (PAGE / "index.html").is_file():
            return JSONResponse({"error": NOT_BUILT}, 503)
        return FileResponse(PAGE / "index.html")

    if (PAGE / "assets").is_dir():
        app.mount("/assets", StaticFiles(directory=PAGE / "assets"))


Events = Iterator[Mapping[str, Any]]
