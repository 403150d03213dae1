"""What every request handler uses: the settings, the clients, the jobs. One for an application."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from rose import transport
from rose.errors import RoseError
from rose.threads import started_pool
from rose_gateway.access.keys import Keys
from rose_gateway.access.sealing import Sealing
from rose_gateway.files.files import Files
from rose_gateway.jobs.job_client import History, Jobs
from rose_gateway.metrics import Metrics
from rose_gateway.models.catalogue import Catalogue, Vocabularies
from rose_gateway.pacing import LoopPacer
from rose_gateway.queue_statuses import QueueStatuses
from rose_gateway.settings import GatewaySettings
from rose_gateway.storage.batch_repository import BatchRepository
from rose_gateway.storage.conversations import Conversations
from rose_gateway.storage.file_repository import FileRepository
from rose_gateway.storage.file_store import FileStore
from rose_gateway.storage.webhook_repository import WebhookRepository
from rose_producer import AsyncClient

log = logging.getLogger("rose.gateway")

#: They read vocabularies.
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Services:
    settings: GatewaySettings
    redis: transport.AsyncRedisClient
    """for what is the gateway's own: keys, limits, facts"""
    clients: Mapping[str, AsyncClient]
    """by queue"""
    catalogue: Catalogue
    jobs: Jobs
    history: History
    conversations: Conversations
    queue_statuses: QueueStatuses
    vocabularies: Vocabularies
    keys: Keys
    sealing: Sealing
    metrics: Metrics
    files: Files
    batches: BatchRepository
    webhooks: WebhookRepository
    pacer: LoopPacer
    """for large bodies, and large lines of batches"""
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Open answers are broken off by this server, not by their clients."""


@asynccontextmanager
async def open_services(
    settings: GatewaySettings, metrics: Metrics, pacer: LoopPacer | None = None
) -> AsyncGenerator[Services, None]:
    asyncio.get_running_loop().set_default_executor(started_pool(_THREADS, "gateway"))
    async with AsyncExitStack() as stack:
        store = FileStore(settings.storage)
        stack.push_async_callback(store.aclose)
        redis = transport.AsyncRedisClient(settings)
        stack.push_async_callback(redis.aclose)
        clients = {
            queue: await stack.enter_async_context(AsyncClient(settings.of_queue(queue)))
            for queue in settings.queue_names
        }
        checking = asyncio.create_task(_check_redis(next(iter(clients.values()))))
        stack.callback(checking.cancel)
        catalogue = Catalogue(redis, clients, settings.model_aliases)
        history = History(redis)
        webhooks = WebhookRepository(redis)
        conversations = Conversations(redis, result_ttl_s=settings.result_ttl_s)
        yield Services(
            settings,
            redis,
            clients,
            catalogue,
            Jobs(clients, redis, metrics, history, conversations, webhooks),
            history,
            conversations,
            QueueStatuses(clients),
            Vocabularies(redis),
            Keys(redis, settings.default_limits),
            Sealing(redis, settings),
            metrics,
            Files(FileRepository(redis), store),
            BatchRepository(redis, keep_s=settings.batch_ttl_s),
            webhooks,
            pacer or LoopPacer(),
        )


async def _check_redis(client: AsyncClient) -> None:
    """It serves all the same, and answers 503: whoever started it should know why."""
    try:
        await client.queue_status()
    except RoseError as error:
        log.warning("%s; until then requests are refused", error)
