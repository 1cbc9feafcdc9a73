"""The web server of a page. It decides who may connect and what they may send, and chooses address and port.

The error of one input is reported, and the loop that serves all inputs goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gzip
import hmac
import html
import http
import io
import ipaddress
import logging
import secrets
import socket
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

import viser
import viser._viser
import viser.infra._infra
import websockets.asyncio.server
from viser._messages import GuiUpdateMessage, Message, ViewerCameraMessage
from viser.infra._async_message_buffer import AsyncMessageBuffer
from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.protocol import State

from mjlab_dist.errors import UserError, printable
from mjlab_dist.imports import patched
from mjlab_dist.messages import emit

_reported: set[tuple[object, ...]] = set()

# Port that is tried first
FIRST_PORT = 8080

# Number of ports that are tried; if all are taken, any free port is used
NUM_PORTS = 100

# Names of this machine in URLs. Other names of 127.0.0.1 are refused, because an attacker may have registered them.
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})

# Seconds that a connection has for its request and the response
HANDSHAKE_S = 10.0

# Maximum number of connections without a complete response. A further one closes the oldest, which is hardly that of a
# browser: a browser sends its request at once.
MAX_HALF_OPEN = 64

# Maximum number of open pages
MAX_PAGES = 32

# Maximum size of a message of a page, in bytes. Pages send values of controls and poses of cameras.
MAX_MESSAGE_BYTES = 1 << 16


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Report an error of the block, and go on after the block."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (any input may be wrong in a way that nobody expects)
        report(error)


def report(error: BaseException) -> None:
    """Print a warning with an error, once for each line of code that raises it."""
    place = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[-1:]]
    kind = (type(error), *place)
    if kind not in _reported:
        _reported.add(kind)
        emit("warning", text=f"the viewer continues after an error: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """Return the message of an error, which may quote any file or client, as one short line."""
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return printable(text)[:500]


class Server(viser.ViserServer):
    """viser's server behind a :class:`Gate`. It never shares the page through viser's public server."""

    url: str
    gate: Gate

    def request_share_url(self, verbose: bool = True) -> str | None:  # noqa: ARG002
        return None

    def entitle(self, task: str, title: str) -> None:
        """Show the task above the panel, and set the title of pages that a browser loads from now on."""
        self.gate.title = printable(title)
        self.gui.set_panel_label(printable(task))

    def clear(self) -> None:
        """Remove everything from the page, to show something else on it."""
        self._client_connect_cb.clear()  # viser has no method for this
        self.gui.reset()
        self.scene.reset()

    def stop(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # viser prints a line when it stops
            super().stop()


def open_server(host: str, port: int | None) -> Server:
    """Start a server."""
    listener = _listen(host, port)
    address, bound = str(listener.getsockname()[0]), int(listener.getsockname()[1])
    gate = Gate(None if ipaddress.ip_address(address).is_loopback else secrets.token_urlsafe(32), bound)
    serve, calls = websockets.asyncio.server.serve, 0

    # viser has no hook for requests and messages. So pass our socket to it, and call the gate before viser's handlers.
    def serve_behind_gate(
        handler: Any, _host: str, _port: int, *, process_request: Callable[..., Response | None], **options: Any
    ) -> Any:
        nonlocal calls
        calls += 1
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: report(context.get("exception") or RuntimeError(context["message"]))
        )
        options |= {
            "process_request": functools.partial(gate.process, process_request),
            "create_connection": functools.partial(_Connection, gate),
            "logger": logging.Logger("mjlab_dist.viewer", logging.CRITICAL),  # refused connections are not errors
            "open_timeout": HANDSHAKE_S,
            "backlog": MAX_HALF_OPEN,  # also the number of connections that asyncio accepts at once
            "max_size": MAX_MESSAGE_BYTES,
        }
        return serve(handler, sock=listener, **options)

    setattr(viser.infra._infra, "AsyncMessageBuffer", _Buffer)  # noqa: B010 (not exported; also for later connections)
    # Hide the addresses that viser prints, because they have no token.
    with (
        patched(websockets.asyncio.server, "serve", serve_behind_gate),
        patched(viser._viser, "ThreadPoolExecutor", _Reactions),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        server = Server(host=address, port=bound, verbose=False)
    assert calls == 1, "viser has opened a server without the gate"
    gate.gui, server.gate = server.gui, gate
    server.url = f"http://{_shown(host, address)}:{bound}/{f'?token={gate.token}' if gate.token else ''}"
    server.gui.configure_theme(show_logo=False, show_share_button=False, control_width="large")
    return server


class Gate:
    """Decides which requests a server answers.

    On a loopback address, programs of this machine may connect, but other websites that are open in a browser may not.
    If a website sends a request, the browser adds two headers: Origin is the website's address, and Host is the address
    that the request goes to. The gate refuses requests in which the two differ. On other addresses, a token is also
    required. The first request contains the token in its URL, and its response sets a cookie with the token for later
    requests.
    """

    gui: viser.GuiApi
    title = "mjlab_dist"

    def __init__(self, token: str | None, port: int) -> None:
        self.token = token  # None on a loopback address
        self._cookie = f"viewer-{port}"

    def process(
        self,
        answer: Callable[[ServerConnection, Request], Response | None],
        connection: ServerConnection,
        request: Request,
    ) -> Response | None:
        """Answer a request, or refuse it."""
        if (refusal := self.refusal(request)) is not None:
            return refusal
        if "Upgrade" in request.headers and len(connection.server.connections) >= MAX_PAGES:
            return _response(http.HTTPStatus.SERVICE_UNAVAILABLE, "Too many pages are open; close one.\n")
        response = answer(connection, request)
        if response is None or not response.headers.get("Content-Type", "").startswith("text/html"):
            return response
        return _entitled(response, self.title)

    def check(self, data: bytes) -> None:
        """Raise if a message is none that the page sends."""
        message = Message.deserialize(data)
        if isinstance(message, ViewerCameraMessage):
            return
        if not isinstance(message, GuiUpdateMessage):
            raise TypeError(f"a client sent a {type(message).__name__}, which the page never sends")
        [(name, value)] = message.updates.items()
        match control := self.gui._gui_input_handle_from_uuid.get(message.uuid):  # viser has no public method
            case None:  # removed while the message was on its way
                return
            case viser.GuiDropdownHandle() | viser.GuiButtonGroupHandle():
                is_possible = value in control.options
            case viser.GuiSliderHandle():
                slack = 1e-6 * (control.max - control.min)  # the page rounds
                is_possible = type(value) in (int, float) and control.min - slack <= value <= control.max + slack
            case _:
                is_possible = isinstance(value, bool)
        if name != "value" or not is_possible:
            raise ValueError(f"a client sent a value that the control {control.label} cannot have")

    def refusal(self, request: Request) -> Response | None:
        """Return the response that refuses a request or sets the cookie; None if viser may answer the request."""
        host, origin = (request.headers.get_all(name) for name in ("Host", "Origin"))
        if len(host) != 1 or len(origin) > 1 or (origin and urlsplit(origin[0]).netloc != host[0]):
            return _response(http.HTTPStatus.FORBIDDEN, "Other websites cannot use this page.\n")
        if self.token is None:
            if urlsplit(f"//{host[0]}").hostname in LOOPBACK_NAMES:
                return None
            return _response(http.HTTPStatus.FORBIDDEN, "Use the address that the command printed.\n")
        if self._is_token(self._from_cookies(request)):
            return None
        url = urlsplit(request.path)
        if self._is_token(parse_qs(url.query).get("token", [""])[0]):
            cookie = f"{self._cookie}={self.token}; Path=/; HttpOnly; SameSite=Lax"
            return _response(http.HTTPStatus.SEE_OTHER, "", ("Location", "/"), ("Set-Cookie", cookie))
        return _response(http.HTTPStatus.FORBIDDEN, "Use the whole address that the command printed.\n")

    def _is_token(self, given: str) -> bool:
        assert self.token is not None
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _from_cookies(self, request: Request) -> str:
        for line in request.headers.get_all("Cookie"):
            with contextlib.suppress(CookieError):
                if (morsel := SimpleCookie(line).get(self._cookie)) is not None:
                    return morsel.value
        return ""


class _Connection(ServerConnection):
    """A connection of a client. The other clients are served, whatever it sends."""

    def __init__(self, gate: Gate, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        waiting = [one for one in self.server.handlers if one.state is State.CONNECTING]
        half_open = [one for one in waiting if not one.transport.is_closing()]
        if len(half_open) > MAX_HALF_OPEN:
            half_open[0].transport.abort()

    async def recv(self, decode: bool | None = None) -> Any:  # noqa: ARG002
        while True:
            data = await super().recv(decode=False)
            with guarded():
                self._gate.check(data)
                return data


class _EventOfLoop(asyncio.Event):
    """An event that is set only in its loop.

    viser sets it in the thread that adds a message, and then again in the loop. The first can come while the loop is
    about to wait, and is lost then. The second changes nothing, because the event is set: the page would never get
    another message.
    """

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # there is no loop in the other threads
            asyncio.get_running_loop()
            super().set()


@dataclass
class _Buffer(AsyncMessageBuffer):
    """Messages to one page or to all, which any thread may add."""

    message_event: asyncio.Event = field(default_factory=_EventOfLoop)


class _Reactions(ThreadPoolExecutor):
    """Runs the functions that controls call, one after the other: two of them could change the same part of a page."""

    def __init__(self, **_: object) -> None:
        super().__init__(max_workers=1)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def react() -> None:
            with guarded():
                fn(*args, **kwargs)

        return super().submit(react)


def _response(status: http.HTTPStatus, text: str, *headers: tuple[str, str]) -> Response:
    body = text.encode()
    fixed = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close")]
    return Response(status.value, status.phrase, Headers([*fixed, *headers]), body)


def _entitled(page: Response, title: str) -> Response:
    """Replace the title of viser's page, which viser has no function for."""
    is_compressed = page.headers["Content-Encoding"] == "gzip"
    body = gzip.decompress(page.body) if is_compressed else bytes(page.body)
    body = body.replace(b"<title>Viser</title>", f"<title>{html.escape(title)}</title>".encode(), 1)
    page.body = gzip.compress(body, compresslevel=1) if is_compressed else body
    del page.headers["Content-Length"]
    page.headers["Content-Length"] = str(len(page.body))
    return page


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(
            f"--host {host}: is not an address of this machine ({error.strerror}); use 127.0.0.1"
        ) from error
    family, _, _, _, address = found[0]
    ports = [port] if port is not None else [*range(FIRST_PORT, FIRST_PORT + NUM_PORTS), 0]
    for number in ports:
        try:
            return socket.create_server((str(address[0]), number), family=family)
        except PermissionError as error:
            raise UserError(f"--port {port}: needs more rights; use a port above 1023") from error
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise UserError(f"--host {host}: is not an address of this machine; use 127.0.0.1") from error
    raise UserError(f"--port {port}: is used by another program; choose another port, or drop --port")


def _shown(host: str, address: str) -> str:
    """Return the name of the host in URLs."""
    if ipaddress.ip_address(address).is_unspecified:
        return socket.gethostname()
    return f"[{address}]" if ":" in address else host
