"""Certificates of one's own, made with openssl, and servers and clients that use them."""

import subprocess
from pathlib import Path

from rose_cli.local.broker import free_port


class Certificates:
    """Two authorities, and certificates that the first has signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for authority in ("ca", "stranger"):
            self._openssl(
                *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
                *("-nodes", "-days", "2", "-subj", f"/CN=test {authority}"),
                # Since Python 3.13 a client asks an authority's certificate what it is for.
                *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
                *("-keyout", f"{authority}.key", "-out", f"{authority}.crt"),
            )
        self._issue("server", "subjectAltName=IP:127.0.0.1,DNS:localhost")
        self._issue("elsewhere", "subjectAltName=DNS:elsewhere.example")
        self._issue("client", "extendedKeyUsage=clientAuth")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def authority(self, name: str = "ca") -> str:
        """The parameter of a URL that trusts it."""
        return f"ssl_ca_certs={self.path(name)}.crt"

    def identity(self) -> str:
        """The parameters of a URL that show a client's certificate."""
        return f"ssl_certfile={self.path('client.crt')}&ssl_keyfile={self.path('client.key')}"

    def shown_by(self, certificate: str = "server", clients: str = "no") -> dict[str, str]:
        """Redis' options to show a certificate, and whether clients must show one."""
        return {
            "tls-cert-file": self.path(f"{certificate}.crt"),
            "tls-key-file": self.path(f"{certificate}.key"),
            "tls-ca-cert-file": self.path("ca.crt"),
            "tls-auth-clients": clients,
        }

    def _issue(self, name: str, extension: str) -> None:
        (self.folder / f"{name}.ext").write_text(extension)
        self._openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.crt"),
        )

    def _openssl(self, *words: str) -> None:
        subprocess.run(["openssl", *words], cwd=self.folder, capture_output=True, check=True)


def add_tls_port(options: dict[str, str], certificates: Certificates) -> int:
    """To a server's options, beside its plain port, on which the tests talk to it. The port."""
    port = free_port()
    options |= {"tls-port": str(port), **certificates.shown_by()}
    return port


def over_tls(url: str, certificates: Certificates | None) -> str:
    """A URL of Redis as a client of TLS needs it; without certificates as it is."""
    if certificates is None:
        return url
    return f"{url.replace('redis', 'rediss', 1)}?{certificates.authority()}"
