"""fakeredis as a server process: `python -m rose_cli.demo.fake_server PORT`."""

from __future__ import annotations

import sys

from fakeredis import TcpFakeServer


def main() -> None:
    server = TcpFakeServer(
        ("127.0.0.1", int(sys.argv[1])), server_type="redis", server_version=(7, 0)
    )
    server.serve_forever()


if __name__ == "__main__":
    main()
