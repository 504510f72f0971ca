"""What is said of a Spark Connect address that speaks TLS, before the client tries for ten minutes."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tidemark.pipeline.errors import SparkUnreachable
from tidemark.pipeline.spark.session import ROOTS, check_answers

HOST = "127.0.0.1"


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A file with a certificate of this host that nobody else signed, and its key."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name.from_rfc4514_string("CN=spark")
    begins = datetime.now(UTC) - timedelta(hours=1)
    named = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    valid = builder.not_valid_before(begins).not_valid_after(begins + timedelta(days=1))
    made = valid.add_extension(named, critical=False)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file = tmp_path / "spark.pem"
    file.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(pem) + key.private_bytes(pem, *plain))
    return file


@contextmanager
def proxy(certificate: Path, *protocols: str) -> Iterator[str]:
    """The address of something that speaks TLS and these protocols."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(list(protocols))
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            with suppress(OSError), context.wrap_socket(server.accept()[0], server_side=True) as connection:
                connection.recv(1)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"sc://{HOST}:{server.getsockname()[1]}/;use_ssl=true"
        thread.join(10)


def test_a_certificate_of_an_authority_that_is_named_is_accepted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOTS, str(certificate))
    with proxy(certificate, "h2") as remote:
        check_answers(remote)


def test_a_certificate_of_an_unknown_authority_is_said_at_once(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ROOTS, raising=False)
    with proxy(certificate, "h2") as remote, pytest.raises(SparkUnreachable, match=f"certificate.*{ROOTS}"):
        check_answers(remote)


def test_a_proxy_without_http_2_is_said_at_once(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOTS, str(certificate))
    with proxy(certificate, "http/1.1") as remote, pytest.raises(SparkUnreachable, match="does not offer HTTP/2"):
        check_answers(remote)
