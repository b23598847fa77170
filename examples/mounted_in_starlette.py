"""A small chat backend in Starlette with Readstate inside it, in the same process.

Here the product has its own way to know its users (a header, for the example), shows a badge from a
Python call, and gives its devices the rest of the API below /readstate.

    python examples/mounted_in_starlette.py

    curl -X POST localhost:8000/rooms/lobby/alice
    curl -X POST localhost:8000/rooms/lobby/bob
    curl -X POST localhost:8000/rooms/lobby/messages -H 'X-User: alice' -d 'Hello, Bob'
    curl localhost:8000/badge -H 'X-User: bob'
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from readstate import Readstate, asgi_app
from readstate.api import ChangeMembers, NewMessage, PutChannel
from readstate.domain.errors import ReadstateError


async def join(request: Request) -> JSONResponse:
    rs: Readstate = request.app.state.readstate
    room, user = request.path_params["room"], request.path_params["user"]
    await rs.channels.put(room, PutChannel(type="group"))
    changed = await rs.channels.change_members(room, ChangeMembers(add=(user,), history="unread"))
    return JSONResponse({"members": changed.member_count})


async def post(request: Request) -> JSONResponse:
    rs: Readstate = request.app.state.readstate
    message = NewMessage(
        channel_id=request.path_params["room"],
        sender_id=request.headers["x-user"],
        text=(await request.body()).decode(),
    )
    [result] = await rs.messages.send([message])
    return JSONResponse({"status": result.status, "seq": result.seq})


async def badge(request: Request) -> JSONResponse:
    rs: Readstate = request.app.state.readstate
    user = request.headers["x-user"]
    totals = (await rs.unread.totals([user]))[user]
    return JSONResponse({"unread": totals.unread, "in_channels": totals.channels})


async def refused(_: Request, error: Exception) -> JSONResponse:
    """Readstate's errors are exceptions in Python; each knows its status."""
    assert isinstance(error, ReadstateError)
    return JSONResponse({"code": error.code, "detail": error.detail}, status_code=error.status)


def create_app(data_dir: str | Path = "./readstate-data") -> Starlette:
    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with Readstate.open(data_dir=str(data_dir)) as rs:
            app.state.readstate = rs
            app.mount("/readstate", asgi_app(rs))
            yield

    return Starlette(
        routes=[
            Route("/rooms/{room}/messages", post, methods=["POST"]),
            Route("/rooms/{room}/{user}", join, methods=["POST"]),
            Route("/badge", badge),
        ],
        exception_handlers={ReadstateError: refused},
        lifespan=lifespan,
    )


if __name__ == "__main__":
    uvicorn.run(create_app(), port=8000)
