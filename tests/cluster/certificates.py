"""A certificate authority for one cluster, and what it signs; valid for a month."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 30


class Authority:
    """Signs client and serving certificates into `folder` (`NAME.crt`, `NAME.key`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject("emep-test-cluster", None)
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._write("ca", certificate, None)
        # Service account tokens are signed by a key of their own.
        account = ec.generate_private_key(ec.SECP256R1())
        _write_private(self.folder / "accounts.key", account)
        (self.folder / "accounts.pub").write_bytes(
            account.public_key().public_bytes(
                serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
            )
        )

    def client(self, file: str, user: str, group: str | None = None) -> None:
        """A certificate that proves `user` (in `group`) to the API server."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_subject(user, group), self._name, key.public_key()).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def server(self, file: str, user: str, names: list[str], addresses: list[str]) -> None:
        """A certificate that a server shows under these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [x509.DNSName(name) for name in names]
        alternatives += [x509.IPAddress(ipaddress.ip_address(a)) for a in addresses]  # type: ignore[misc]
        builder = (
            _builder(_subject(user, None), self._name, key.public_key())
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        )
        self._write(file, builder.sign(self._key, hashes.SHA256()), key)

    def _write(
        self, file: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey | None
    ) -> None:
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        (self.folder / f"{file}.crt").write_bytes(pem)
        if key is not None:
            _write_private(self.folder / f"{file}.key", key)


def write_kubeconfig(target: Path, server: str, folder: Path, user: dict[str, str], namespace: str) -> None:
    """A kubeconfig for `server` whose authority is `folder`/ca.crt; `user` as the file's format has it."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [
            {"name": "test", "cluster": {"server": server, "certificate-authority": str(folder / "ca.crt")}}
        ],
        "users": [{"name": "user", "user": user}],
        "contexts": [
            {"name": "test", "context": {"cluster": "test", "user": "user", "namespace": namespace}}
        ],
    }
    fresh = target.with_suffix(".fresh")
    fresh.write_text(yaml.safe_dump(document))
    fresh.chmod(0o600)
    fresh.replace(target)


def by_certificate(folder: Path, file: str) -> dict[str, str]:
    """The user part of a kubeconfig."""
    return {
        "client-certificate": str(folder / f"{file}.crt"),
        "client-key": str(folder / f"{file}.key"),
    }


def _subject(name: str, group: str | None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if group:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
    return x509.Name(parts)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _write_private(target: Path, key: ec.EllipticCurvePrivateKey) -> None:
    target.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    target.chmod(0o600)
