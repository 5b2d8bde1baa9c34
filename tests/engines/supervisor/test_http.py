"""The supervisor's calls over real sockets: refusals, redirects, proxies, certificates, silence."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from engines.supervisor.http import JsonPost

Reply = tuple[int, dict[str, str], bytes]
TOKEN = {"Authorization": "Bearer t"}


class Server:
    """Answers as ``reply`` says; ``seen`` has each request's target, bearer and body."""

    def __init__(self) -> None:
        self.reply: Callable[[str], Reply] = lambda target: (200, {}, b'{"directive": "continue"}')
        self.seen: list[tuple[str, str | None, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.path, self.headers["Authorization"], body))
                status, headers, content = outer.reply(self.path)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)

    def start(self) -> Server:
        self._thread.start()
        return self

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    server = Server()
    yield server
    server.stop()


def client(url: str, timeout: float = 60) -> JsonPost:
    return JsonPost(f"{url}/allocations/a1/", TOKEN, timeout)


def test_an_answer_is_status_phrase_and_object(server: Server) -> None:
    server.start()
    answer = client(f"http://127.0.0.1:{server.port}").post("heartbeat", {"epoch": 1})
    assert answer == (200, "OK", {"directive": "continue"})
    assert server.seen == [("/allocations/a1/heartbeat", "Bearer t", {"epoch": 1})]


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b"", b"\xff"])
def test_what_is_no_object_is_an_empty_one(server: Server, content: bytes) -> None:
    server.reply = lambda target: (502, {}, content)
    server.start()
    answer = client(f"http://127.0.0.1:{server.port}").post("complete", {})
    assert answer == (502, "Bad Gateway", {})


def test_a_refusal_is_an_answer_with_its_detail(server: Server) -> None:
    server.reply = lambda target: (409, {}, b'{"detail": "epoch 3 is over: 4"}')
    server.start()
    answer = client(f"http://127.0.0.1:{server.port}").post("heartbeat", {})
    assert answer == (409, "Conflict", {"detail": "epoch 3 is over: 4"})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed_for_the_token_is_the_apis_alone(server: Server, status: int) -> None:
    server.reply = lambda target: (status, {"Location": "/elsewhere"}, b"")
    server.start()
    assert client(f"http://127.0.0.1:{server.port}").post("heartbeat", {})[0] == status
    assert [target for target, _, _ in server.seen] == ["/allocations/a1/heartbeat"]


def test_the_environments_proxy_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
    assert client("http://api.invalid").post("heartbeat", {})[0] == 200
    assert server.seen[0][0] == "http://api.invalid/allocations/a1/heartbeat"


def test_hosts_that_need_no_proxy_are_called_directly(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.start()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert client(f"http://127.0.0.1:{server.port}").post("heartbeat", {})[0] == 200


def test_nobody_there_and_silence_are_errors_of_the_system(server: Server) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(URLError, match="refused"):
            client(f"http://127.0.0.1:{silent.getsockname()[1]}").post("heartbeat", {})
        silent.listen()
        with pytest.raises(OSError, match="timed out"):
            client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1).post("heartbeat", {})
    server.start()


def test_certificates_are_checked_against_what_the_environment_trusts(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path / "server.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.http.socket = context.wrap_socket(server.http.socket, server_side=True)
    server.start()
    url = f"https://127.0.0.1:{server.port}"
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        client(url).post("heartbeat", {})
    assert server.seen == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert client(url).post("heartbeat", {})[0] == 200


def make_certificate(path: Path) -> Path:
    """A key and its own certificate for 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - day).not_valid_after(now + day)
    certificate = builder.add_extension(address, critical=False).sign(key, hashes.SHA256())
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
