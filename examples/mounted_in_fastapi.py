"""A small chat backend in FastAPI with Readstate inside it, in the same process.

The backend tells Readstate about rooms and messages by Python calls. Devices ask for unread counts and
mark messages read over HTTP, below /readstate, with the token that they got when they logged in.

    python examples/mounted_in_fastapi.py

    curl -X POST localhost:8000/rooms/lobby -H 'Content-Type: application/json' -d '["alice", "bob"]'
    curl -X POST localhost:8000/rooms/lobby/messages -H 'Content-Type: application/json' \
         -d '{"author": "alice", "text": "Hello, Bob"}'
    TOKEN=$(curl -sX POST localhost:8000/login/bob | cut -d'"' -f4)
    curl localhost:8000/readstate/v1/users/me/channels/lobby/unread -H "Authorization: Bearer $TOKEN"
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request
from pydantic import BaseModel

from readstate import Readstate, asgi_app
from readstate.api import NewMessage, PutChannel
from readstate.gateway.auth.authenticator import load_secrets, make_token


class Post(BaseModel):
    author: str
    text: str


def create_app(data_dir: str | Path = "./readstate-data") -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with Readstate.open(data_dir=str(data_dir)) as rs:
            app.state.readstate = rs
            app.state.jwt_secret = load_secrets(rs.settings).jwt_secret
            app.mount("/readstate", asgi_app(rs))
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/login/{user}")
    async def login(user: str, request: Request) -> dict[str, str]:
        # A real product checks a password first.
        return {"token": make_token(request.app.state.jwt_secret, user, ttl_seconds=3600)}

    @app.post("/rooms/{room}")
    async def open_room(room: str, members: list[str], request: Request) -> dict[str, int]:
        rs: Readstate = request.app.state.readstate
        channel = await rs.channels.put(room, PutChannel(type="group", members=tuple(members)))
        return {"members": channel.member_count}

    @app.post("/rooms/{room}/messages")
    async def post(room: str, post: Post, request: Request) -> dict[str, str | int | None]:
        # A real product stores the message in its own database, too.
        rs: Readstate = request.app.state.readstate
        message = NewMessage(channel_id=room, sender_id=post.author, text=post.text)
        [result] = await rs.messages.send([message])
        return {"id": result.id, "seq": result.seq, "status": result.status}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(), port=8000)
