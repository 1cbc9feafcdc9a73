"""The requests that the viewer answers.

On a loopback address, it answers all programs of this machine. On other addresses, it answers only requests with the
token. It never answers requests from other websites.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import websockets.sync.client
from websockets.datastructures import Headers
from websockets.exceptions import InvalidStatus
from websockets.http11 import Request
from websockets.typing import Origin

from mjlab_dist.errors import UserError
from mjlab_dist.view.server import Gate, Server, open_server


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
    server = open_server("0.0.0.0", None)
    yield server
    server.stop()


def test_without_the_token_a_server_gives_nothing(public: Server) -> None:
    url = urlsplit(public.url)
    assert url.port is not None
    token = url.query.removeprefix("token=")
    assert len(token) >= 40
    assert _get(url.port, "/")[0] == 403
    assert _get(url.port, "/assets/any.js")[0] == 403
    assert _get(url.port, f"/?token={token[:-1]}")[0] == 403
    # The websocket, which sends all data, refuses connections without the token or from other websites
    address = f"ws://127.0.0.1:{url.port}"
    with pytest.raises(InvalidStatus, match="403"):
        websockets.sync.client.connect(address)
    with pytest.raises(InvalidStatus, match="403"):
        websockets.sync.client.connect(address, additional_headers={"Cookie": f"viewer-{url.port}=x"})
    with pytest.raises(InvalidStatus, match="403"):
        websockets.sync.client.connect(
            address, origin=Origin("http://evil.example"), additional_headers={"Cookie": f"viewer-{url.port}={token}"}
        )
    # With the token, the page and the websocket can be opened
    status, cookie = _get(url.port, f"/?token={token}")
    assert status == 303
    assert cookie is not None
    pair = cookie.partition(";")[0]
    assert _get(url.port, "/", pair)[0] == 200
    websockets.sync.client.connect(address, additional_headers={"Cookie": pair}).close()


def test_the_viewer_never_opens_a_tunnel(public: Server) -> None:
    assert public.request_share_url() is None


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


def _get(port: int, path: str, cookie: str | None = None) -> tuple[int, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers={"Cookie": cookie} if cookie else {})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status, response.getheader("Set-Cookie")
