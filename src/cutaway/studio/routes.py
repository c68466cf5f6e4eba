"""The API's routes: each names its request, its call of `studio.py`, and nothing else."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from cutaway.checkpoints.weights import raw_bytes
from cutaway.errors import CutawayError
from cutaway.seeing.render.serialize import json_safe
from cutaway.seeing.trace.trace import Trace
from cutaway.studio import slicing
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

api = APIRouter(prefix="/api")
T = TypeVar("T")
At = Annotated[str | None, Query(max_length=200, description="a slice: `0,2,:,1:4`; what is left out is whole")]
Cell = Annotated[str, Query(max_length=200, description="a number for each axis: `0,2,3,5`")]
Address = Annotated[str, Query(max_length=4000, description="the view that the page opens")]


@dataclass(frozen=True)
class QueuedWork:
    """The studio, and the queue in which each request's work waits its turn and has a deadline."""

    studio: Studio
    queue: WorkQueue
    request: Request

    async def __call__(self, work: Callable[[Deadline], T]) -> T:
        return await self.queue.do(work, self.request.is_disconnected)


async def _queued(request: Request) -> QueuedWork:
    return QueuedWork(request.app.state.studio, request.app.state.queue, request)


Work = Annotated[QueuedWork, Depends(_queued)]


@api.get("/models", tags=["models"])
async def models(work: Work) -> dict[str, Any]:
    """The models this studio was started with: what they are made of, and what they can do."""
    return {"models": work.studio.described}


@api.post("/run", tags=["traces"])
async def run(work: Work, request: RunRequest) -> dict[str, Any]:
    """Run a text (or image) and keep every value on the way; with `edits`, changed on the way."""
    return await work(lambda deadline: work.studio.run(request, deadline.check))


@api.get("/traces/{number}", tags=["traces"])
async def trace(work: Work, number: str) -> dict[str, Any]:
    """What `run` answered for this trace."""
    return work.studio.traces.get(number).info


@api.get("/traces/{number}/values/{name}", tags=["traces"])
async def value(
    work: Work, number: str, name: str, at: At = None, format: Literal["json", "binary"] = "json"  # noqa: A002
) -> Response:  # fmt: skip
    """One value, or a slice of it; `binary`: little-endian float32, its shape in the header X-Shape."""
    send = _binary if format == "binary" else _json
    return await work(lambda _: send(work.studio.traces.get(number).trace, name, at, work.queue.limits))


@api.get("/traces/{number}/explain/{name}", tags=["traces"])
async def explain(work: Work, number: str, name: str, at: Cell) -> dict[str, Any]:
    """The sum behind one number, as a tree that can be added up again, and written out."""
    return await work(lambda _: work.studio.explain(number, name, at))


@api.get("/traces/{number}/lens", tags=["traces"])
async def lens(work: Work, number: str) -> dict[str, Any]:
    """Logit lens: the head applied to the output of every block."""
    return await work(lambda _: work.studio.lens(number))


@api.get("/traces/{number}/rollout", tags=["traces"])
async def rollout(work: Work, number: str) -> dict[str, Any]:
    """Attention rollout: how much of each token reaches each place through all blocks."""
    return await work(lambda _: work.studio.rollout(number))


@api.get("/traces/{number}/html", tags=["traces"])
async def offline(work: Work, number: str, view: Address = "") -> Response:
    """The trace as one page that opens from disk, without a server."""
    return _page("trace.html", await work(lambda _: work.studio.html(number, view)))


@api.post("/next", tags=["writing"])
async def following(work: Work, request: NextRequest) -> dict[str, Any]:
    """The distribution of the next token, before and after temperature, top-k, top-p and min-p."""
    return await work(lambda _: work.studio.next(request))


@api.post("/beams", tags=["writing"])
async def beams(work: Work, request: BeamsRequest) -> dict[str, Any]:
    """Beam search as a tree: every candidate that was scored, and the texts that were found."""
    return await work(lambda deadline: work.studio.beams(request, deadline.check))


@api.post("/generate", tags=["writing"], response_class=StreamingResponse)
async def generate(work: Work, request: GenerateRequest) -> StreamingResponse:
    """A text as it is written, as server-sent events: `token`, then `done` (or `error`)."""
    events = work.queue.stream(lambda deadline: work.studio.generate(request, deadline.check))
    first = await anext(events)  # what is wrong with the request has a status of its own
    return StreamingResponse(_sent(first, events), media_type="text/event-stream")


@api.get("/notes", tags=["notes"])
async def all_notes(work: Work) -> dict[str, Any]:
    """The worked examples of the lecture notes, recomputed, and the quiz with its demonstrations."""
    return await work(lambda _: work.studio.notes())


@api.post("/notes/html", tags=["notes"])
async def notes_page(work: Work, request: NotesPageRequest) -> Response:
    """The notes as one page that opens from disk, without a server."""
    return _page("notes.html", await work(lambda _: work.studio.notes_page(request)))


@api.post("/notes/{number}", tags=["notes"])
async def one_note(work: Work, number: int, request: NotesRequest) -> dict[str, Any]:
    """One worked example with other numbers."""
    return await work(lambda _: work.studio.note(number, request.inputs))


def _page(name: str, text: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type="text/html", headers=headers)


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
