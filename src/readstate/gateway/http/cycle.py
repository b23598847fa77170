"""uvicorn's request and answer, with a short way for the answers of the API."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from readstate.gateway.asgi import JSON_HEADERS, Header

_LINES: Final = b"".join(b"%b: %b\r\n" % header for header in JSON_HEADERS) + b"content-length: "


class Cycle(RequestResponseCycle):
    """Writes an answer of JSON in one piece. uvicorn checks every header of every answer, and writes two pieces."""

    _head = b""
    """Status and headers that wait for the body."""

    async def send(self, message: Any) -> None:
        if self._head:
            await self._finish(message["body"])
        elif self._is_plain(message):
            self.response_started, self.waiting_for_100_continue = True, False
            common = [b"%b: %b\r\n" % header for header in self.default_headers]
            length = message["headers"][-1][1]
            self._head = b"".join([STATUS_LINE[message["status"]], *common, _LINES, length, b"\r\n\r\n"])
        else:
            await super().send(message)

    def _is_plain(self, message: Any) -> bool:
        """Whether this starts an answer with the headers of JSON, a length and no others: its body follows whole."""
        if message["type"] != "http.response.start" or self.disconnected:  # to a client that has left, nothing starts
            return False
        if self.response_started or not self.keep_alive or self.scope["method"] == "HEAD":
            return False
        headers: list[Header] = message["headers"]
        return headers[:-1] == JSON_HEADERS and headers[-1][0] == b"content-length"

    async def _finish(self, body: bytes) -> None:
        head, self._head = self._head, b""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        self.transport.write(head + body)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:  # the server has begun to stop
            self.transport.close()
        self.on_response()
