"""The requests that the viewer answers.

On a loopback address, it answers all programs of this machine. On other addresses, it answers only requests with the
token. It never answers requests from other websites.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import math
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import msgspec
import pytest
import viser
import websockets.sync.client
from viser._messages import GuiFormDirtyMessage, GuiHtmlMessage, GuiUpdateMessage, Message, ViewerCameraMessage
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request
from websockets.sync.client import ClientConnection
from websockets.typing import Origin, Subprotocol

from mjlab_dist.errors import UserError
from mjlab_dist.messages import Event, listening
from mjlab_dist.policies.view import gate
from mjlab_dist.policies.view.gate import MAX_HALF_OPEN, Gate, Server, open_server


@pytest.mark.parametrize(
    ("headers", "is_accepted"),
    [
        ({"Host": "127.0.0.1:8080"}, True),
        ({"Host": "localhost:9000"}, True),
        ({"Host": "[::1]:8080"}, True),
        ({"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:8080"}, True),
        ({"Host": "127.0.0.1:8080", "Origin": "http://evil.example"}, False),
        ({"Host": "127.0.0.1:8080", "Origin": "http://127.0.0.1:9999"}, False),
        ({"Host": "127.0.0.1:8080", "Origin": "null"}, False),
        ({"Host": "evil.example:8080"}, False),
        ({"Host": "evil.example:8080", "Origin": "http://evil.example:8080"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({}, False),
    ],
)
def test_on_loopback_only_names_of_this_machine_and_the_same_origin_are_accepted(
    headers: dict[str, str], is_accepted: bool
) -> None:
    refusal = Gate(None, 8080).refusal(Request("/", Headers(headers)))
    assert (refusal is None) == is_accepted


def test_two_hosts_or_origins_are_refused() -> None:
    for name in ("Host", "Origin"):
        headers = Headers([("Host", "localhost"), (name, "localhost"), (name, "http://localhost")])
        assert Gate(None, 8080).refusal(Request("/", headers)) is not None


@pytest.mark.parametrize(
    ("path", "cookie", "status"),
    [
        ("/", None, 403),
        ("/?token=wrong", None, 403),
        ("/?token=", None, 403),
        ("/?token=secret", None, 303),
        ("/?token=s%C3%A9cret", None, 403),
        ("/", "viewer-8080=wrong", 403),
        ("/", "viewer-8081=secret", 403),
        ("/", "a b; viewer-8080", 403),
        ("/", "viewer-8080=secret", None),
        ("/", "other=1; viewer-8080=secret", None),
    ],
)
def test_a_token_is_required_once_and_then_its_cookie(path: str, cookie: str | None, status: int | None) -> None:
    headers = Headers({"Host": "machine:8080", **({"Cookie": cookie} if cookie else {})})
    refusal = Gate("secret", 8080).refusal(Request(path, headers))
    assert (refusal.status_code if refusal else None) == status
    if status == 303:
        assert refusal is not None
        assert refusal.headers["Set-Cookie"] == "viewer-8080=secret; Path=/; HttpOnly; SameSite=Lax"
        assert refusal.headers["Location"] == "/"


@pytest.fixture(scope="module")
def public() -> Iterator[Server]:
    """A server that listens on all addresses of this machine."""
    gate = open_server("0.0.0.0", None)
    yield gate
    gate.stop()


def test_without_the_token_a_server_gives_nothing(public: Server) -> None:
    url = urlsplit(public.url)
    assert url.port is not None
    token = url.query.removeprefix("token=")
    assert len(token) >= 40
    assert _get(url.port, "/")[0] == 403
    assert _get(url.port, "/assets/any.js")[0] == 403
    assert _get(url.port, f"/?token={token[:-1]}")[0] == 403
    # The websocket, which sends all data, refuses connections without the token or from other websites
    address, cookie_name = f"ws://127.0.0.1:{url.port}", f"viewer-{url.port}"
    evil = Origin("http://evil.example")
    for cookie, origin in ((None, None), (f"{cookie_name}=x", None), (f"{cookie_name}={token}", evil)):
        headers = {"Cookie": cookie} if cookie else {}
        with pytest.raises(InvalidStatus, match="403"):
            websockets.sync.client.connect(address, origin=origin, additional_headers=headers)
    # With the token, the page and the websocket can be opened
    status, cookie = _get(url.port, f"/?token={token}")
    assert status == 303
    assert cookie is not None
    pair = cookie.partition(";")[0]
    assert _get(url.port, "/", pair)[0] == 200
    websockets.sync.client.connect(address, additional_headers={"Cookie": pair}).close()


def test_the_viewer_never_opens_a_tunnel(public: Server) -> None:
    assert public.request_share_url() is None


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_a_page_has_the_title_of_its_task(local: Callable[..., Server], encoding: str) -> None:
    server = local()
    server.entitle("task", "task <b> \udc80")
    connection = http.client.HTTPConnection("127.0.0.1", server.get_port())
    connection.request("GET", "/", headers={"Accept-Encoding": encoding})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert response.getheader("Content-Encoding") == encoding
    assert b"<title>task &lt;b&gt; " in (gzip.decompress(body) if encoding == "gzip" else body)
    assert _get(server.get_port(), "/missing.js")[0] == 404


def test_a_taken_port_is_refused_and_a_free_one_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"^--port {port}: is used"):
            open_server("127.0.0.1", port)
    with pytest.raises(UserError, match=r"^--host 192.0.2.1: is not an address of this machine"):
        open_server("192.0.2.1", None)
    with pytest.raises(UserError, match=r"^--host no.such.host.invalid: is not an address"):
        open_server("no.such.host.invalid", None)
    first, second = open_server("127.0.0.1", None), open_server("localhost", None)
    assert first.url.startswith("http://127.0.0.1:")
    assert "token" not in first.url
    assert urlsplit(first.url).port != urlsplit(second.url).port
    first.stop()
    second.stop()


def test_a_message_that_comes_while_the_loop_begins_to_wait_is_sent(
    public: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    infra = public._websock_server
    loop, buffer = infra._background_event_loop, infra.get_message_buffer()
    assert loop is not None
    messages = ["late"]

    def add_message() -> asyncio.AbstractEventLoop:
        """Add a message in another thread, when the event has found that it is not set, and is about to wait."""
        if messages:
            thread = threading.Thread(target=public.gui.add_html, args=(messages.pop(),))
            thread.start()
            thread.join()
        return loop

    async def await_message() -> None:
        async for window in buffer.window_generator(client_id=-1):
            if any(isinstance(message, GuiHtmlMessage) for message in window):
                return

    buffer.message_event.clear()
    monkeypatch.setattr(buffer.message_event, "_get_loop", add_message)
    asyncio.run_coroutine_threadsafe(await_message(), loop).result(timeout=30.0)


def _get(port: int, path: str, cookie: str | None = None) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.getheader("Set-Cookie")


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    """Return a function that opens a server with other limits."""
    servers: list[Server] = []

    def open_one(**limits: float) -> Server:
        for name, value in limits.items():
            monkeypatch.setattr(gate, name, value)
        servers.append(open_server("127.0.0.1", None))
        return servers[-1]

    yield open_one
    for one in servers:
        one.stop()


def _half_open(port: int, number: int) -> selectors.DefaultSelector:
    """Open connections that send no request, or a part of one."""
    opened = selectors.DefaultSelector()
    for i in range(number):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"GET / HTTP/1.1\r\nHo" if i % 2 else b"")
        opened.register(client, selectors.EVENT_READ)
    return opened


def _close(opened: selectors.DefaultSelector, number: int) -> None:
    """Wait until the server has closed at least a number of connections, and close them here too."""
    while number > 0:
        for key, _ in opened.select():
            opened.unregister(key.fileobj)
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
            number -= 1


def test_half_open_connections_are_limited_and_others_are_served(local: Callable[..., Server]) -> None:
    port = local(HANDSHAKE_S=3600.0).get_port()
    with _half_open(port, 200) as opened:
        assert _get(port, "/")[0] == 200
        _close(opened, 200 - MAX_HALF_OPEN)
        assert _get(port, "/")[0] == 200
        for key in list(opened.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()


def test_half_open_connections_are_closed_at_the_deadline(local: Callable[..., Server]) -> None:
    with _half_open(local(HANDSHAKE_S=0.1).get_port(), 20) as opened:
        _close(opened, 20)


def test_the_number_of_pages_is_limited(local: Callable[..., Server]) -> None:
    port = local(MAX_PAGES=1).get_port()
    with _page(port):
        with pytest.raises(InvalidStatus, match="503"):
            _page(port)
        assert _get(port, "/")[0] == 200


def _page(port: int) -> ClientConnection:
    """Connect as a page does."""
    return websockets.sync.client.connect(
        f"ws://127.0.0.1:{port}", subprotocols=[Subprotocol(f"viser-v{viser.__version__}")], max_size=None
    )


def _data(message: Message) -> bytes:
    return msgspec.msgpack.encode(message.as_serializable_dict())


@pytest.mark.parametrize(
    ("control", "good", "bad"),
    [
        ("slider", [0, 1, 0.5, 1.0000000001], [-1, 1.1, math.nan, math.inf, -math.inf, 1e308, True, "1", None, [0.5]]),
        ("menu", ["a", "b"], ["c", "", 0, None, ["a"], {}]),
        ("speed", ["0.5", "1"], ["1e-320", "nan", "-1", 0.5]),
        ("switch", [True, False], [1, "x", None, []]),
        ("button", [True], [5, "x"]),
    ],
)
def test_a_control_gets_only_values_that_the_page_offers(
    control: str, good: list[object], bad: list[object], local: Callable[..., Server]
) -> None:
    gate = Gate(None, 1)
    gui = gate.gui = local().gui
    controls = {
        "slider": gui.add_slider("slider", min=0.0, max=1.0, step=0.1, initial_value=0.5),
        "menu": gui.add_dropdown("menu", ("a", "b")),
        "speed": gui.add_button_group("speed", ("0.5", "1")),
        "switch": gui.add_checkbox("switch", initial_value=False),
        "button": gui.add_button("button"),
    }
    uuid = controls[control]._impl.uuid
    for value in good:
        gate.check(_data(GuiUpdateMessage(uuid, {"value": value})))
    for value in bad:
        with pytest.raises(ValueError, match="cannot have"):
            gate.check(_data(GuiUpdateMessage(uuid, {"value": value})))
    for updates in ({}, {"update_cb": True}, {"sync_cb": True, "value": good[0]}):
        with pytest.raises(ValueError, match=r"cannot have|unpack"):
            gate.check(_data(GuiUpdateMessage(uuid, updates)))
    gate.check(_data(GuiUpdateMessage("removed", {"value": 1})))


def test_a_message_that_no_page_sends_is_ignored_and_reported_once(
    local: Callable[..., Server], wait_for: Callable[[Callable[[], bool]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_reported", set())
    events: list[Event] = []
    one = local()
    slider = one.gui.add_slider("slider", min=0.0, max=1.0, step=0.1, initial_value=0.5)
    seen: list[float] = []

    def react(_: object) -> None:
        seen.append(slider.value)
        raise RuntimeError("in a reaction")

    slider.on_update(react)

    place = (1.0, 1.0, 1.0)
    camera = ViewerCameraMessage((1.0, 0.0, 0.0, 0.0), place, 1.0, 0.1, 100.0, 480, 640, (0.0, 0.0, 0.0), place)
    with listening(events.append), _page(one.get_port()) as page:
        page.send(_data(camera))
        for _ in range(3):
            page.send("text")
            page.send(b"")
            page.send(b"\x91" * 60_000)
            page.send(msgspec.msgpack.encode({"type": "GuiUpdateMessage", "uuid": [], "updates": 1}))
            page.send(_data(GuiFormDirtyMessage("x")))
            page.send(_data(GuiUpdateMessage(slider._impl.uuid, {"value": math.nan})))
        page.send(_data(GuiUpdateMessage(slider._impl.uuid, {"value": 0.75})))
        page.send(_data(GuiUpdateMessage(slider._impl.uuid, {"value": 0.25})))
        wait_for(lambda: seen == [0.75, 0.25])
    texts = [event["text"] for event in events]
    assert len(texts) == len(set(texts))
    assert sum("in a reaction" in text for text in texts) == 1
    assert all(len(text.splitlines()) == 1 for text in texts)
