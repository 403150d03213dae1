"""Faults of single jobs: their results expire, their dead letters are retried."""

import asyncio
import time

import redis

from rose.errors import InvalidRequest, JobNotFound, MalformedMessage, TenantLimited
from rose.protocol import Partition, TokenEvent, encode_event, partition_of
from rose_producer import Client, Job, Request
from rose_producer.dead_letters import DeadLetter, DeadLetters
from tests.chaos.context import QUEUE, healed_file
from tests.chaos.faults.scene import Scene
from tests.chaos.plan import COPY_BASE, RAW_BASE, Fault, Kind
from tests.chaos.topology import OneServer

_OTHER_DATABASE = 1
#: Jobs that have namesakes.
_NAMESAKES = 10
#: More than any job has.
_TOKENS = 150


async def be_a_neighbour(scene: Scene, fault: Fault) -> str:
    """Another deployment, in another database of this Redis, has jobs with the ids of those that
    run here, cancels them and says tokens. Nobody here may notice."""
    if not isinstance(scene.topology, OneServer):
        return "there is no other database"
    async with scene.redis_lock:
        running, plan = scene.progress.running(), scene.raw.plan
        ids = [scene.progress.submitted[n] for n in running if plan.job(n).own_id]
        return await asyncio.to_thread(_submit_and_cancel, scene, ids[:_NAMESAKES])


def _submit_and_cancel(scene: Scene, ids: list[str]) -> str:
    node, *_ = scene.node(0)
    url = f"redis://127.0.0.1:{node.port}/{_OTHER_DATABASE}"
    with redis.Redis.from_url(url, protocol=2) as server:
        with Client(redis_url=url, queue=QUEUE, partitions=scene.raw.plan.partitions) as client:
            for job_id in ids:
                client.submit([1], max_new_tokens=1, job_id=job_id).cancel()
                channel = Partition(QUEUE, partition_of(job_id), _OTHER_DATABASE).channel(job_id)
                with server.pipeline(transaction=False) as worker:
                    for index in range(_TOKENS):
                        said = TokenEvent(index=index, token_ids=(0,), text="other")
                        worker.publish(channel, encode_event(said))
                    worker.execute()
        server.flushdb()
    return f"{len(ids)} jobs"


async def expire(scene: Scene, fault: Fault) -> str:
    """Time passes for one job: its result expires, and its idempotency key is used again."""
    async with scene.redis_lock:
        ended = [number for number in scene.progress.delivered if _may_expire(scene, number)]
        if not ended:
            return "no job has ended yet"
        number = ended[fault.target % len(ended)]
        scene.expired.add(number)
        return await asyncio.to_thread(_expire, scene, number)


def _may_expire(scene: Scene, number: int) -> bool:
    if number >= RAW_BASE or number not in scene.progress.ended or scene.is_protected(number):
        return False
    job = scene.raw.plan.job(number)
    return job.kind is Kind.PLAIN and not job.named and number not in scene.expired


def _expire(scene: Scene, number: int) -> str:
    job, job_id = scene.raw.plan.job(number), scene.progress.submitted[number]
    _age(scene, number, job_id, scene.product.settings.result_ttl_s)
    handle = scene.product.job(job_id)
    for name, ask in (("status", handle.status), ("stream", lambda: next(handle.stream()))):
        try:
            ask()
        except JobNotFound:
            pass  # as it must
        else:
            scene.surprises.append(f"{job_id} has expired and has a {name}")
    again = _submit_again(scene, job.request)
    if again.id == job_id:
        scene.surprises.append(f"the key of {job_id} has outlived it: a repeat gets a dead handle")
    else:
        scene.raw.entries += 1
        scene.raw.announce(number + COPY_BASE, again.id)
    return f"{job_id}, then {again.id}"


def _submit_again(scene: Scene, request: Request) -> Job:
    """As soon as its tenant may have one more."""
    while True:
        try:
            return scene.product.submit_many([request])[0]
        except TenantLimited:
            time.sleep(0.1)


def _age(scene: Scene, number: int, job_id: str, by_s: int) -> None:
    """Let the times to live of a job's keys pass as if so much time had passed."""
    partition = Partition(QUEUE, partition_of(job_id))
    client = scene.topology.client_of(partition)
    named = partition.idempotency(scene.raw.plan.job(number).request.idempotency_key or "")
    if client.get(named) != job_id.encode():
        scene.surprises.append(f"{job_id} has ended and has no idempotency key")
    keys = [partition.state(job_id), partition.tokens(job_id), named]
    for key in keys:
        left_ms = int(client.pttl(key)) - by_s * 1000
        client.pexpire(key, max(1, left_ms))
    while client.exists(*keys[:2]):
        time.sleep(0.01)


async def retry(scene: Scene, fault: Fault) -> str:
    """A poison that is harmless by now runs to its end; garbage stays where it is."""
    async with scene.redis_lock:
        return await asyncio.to_thread(_retry, scene)


def _retry(scene: Scene) -> str:
    with DeadLetters(scene.product.settings) as letters:
        there = list(letters.list())
        for letter in there:
            number = scene.progress.numbers.get(letter.job_id or "")
            if number is not None and letter.code == "crash_loop" and number < COPY_BASE:
                healed_file(scene.fleet.folder, number).touch()
                retried = letters.retry(letter.handle)
                scene.retried.add(number)
                scene.raw.entries += 1
                scene.raw.announce(number + COPY_BASE, retried.new_id)
                return f"{letter.job_id}, now {retried.new_id}"
        for letter in there:
            return _refused(scene, letters, letter)
    return "there is none yet"


def _refused(scene: Scene, letters: DeadLetters, letter: DeadLetter) -> str:
    try:
        letters.retry(letter.handle)
    except (MalformedMessage, InvalidRequest):
        return f"{letter.handle}, which cannot be read"
    scene.surprises.append(f"garbage was retried: {letter.handle}")
    return letter.handle
