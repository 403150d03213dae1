"""`rose gateway`, mortal: `python -m tests.chaos.gateway CONTEXT`."""

from rose_gateway.server import run
from rose_gateway.settings import GatewaySettings
from tests.chaos.context import GRACE_S, QUEUE, REDIS_TIMEOUT_S, begin_process

#: A client that hears nothing for longer takes the connection for lost.
HEARTBEAT_S = 2.0


def main() -> None:
    context = begin_process()
    run(
        GatewaySettings(
            redis_url=context.redis_url,
            redis_timeout_s=REDIS_TIMEOUT_S,
            queue=QUEUE,
            partitions=context.partitions,
            port=context.http_port,
            heartbeat_s=HEARTBEAT_S,
            grace_s=GRACE_S,
        )
    )


if __name__ == "__main__":
    main()
