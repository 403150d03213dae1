"""The gateway as the Redis user that is shipped for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import redis

from tests.conftest import needs_redis_server
from tests.support.api_keys import bearer
from tests.support.batch_lines import completion, raw_line
from tests.support.bench import wait_until
from tests.support.command import run_rose
from tests.support.echo import serving
from tests.support.gateway import running_gateway
from tests.support.redis_users import guarded_server
from tests.support.users_at_work import QUEUE, url

LINES = raw_line("a", completion("ab"))
ENDS = ("completed", "cancelled", "failed", "expired")


@needs_redis_server
def test_its_user_may_do_all_that_it_does(tmp_path: Path) -> None:
    options = ["--requests-per-minute=100", "--tokens-per-minute=100000", "--max-jobs=1"]
    with (
        guarded_server(tmp_path) as server,
        serving("w", url("worker", server.port), queue=QUEUE),
        running_gateway(url("gateway", server.port), QUEUE) as gateway,
        redis.Redis.from_url(server.url, protocol=2) as admin,
    ):
        # given
        place = f"--redis-url={url('operator', server.port)}"
        made = run_rose("keys", "create", "k", "--json", place, *options)
        key = json.loads(made.stdout)
        with httpx.Client(
            base_url=gateway.url, headers=bearer(key["secret"]), timeout=90
        ) as client:
            # when: it does what a gateway does, its limit of jobs reached again and again
            for number in range(3):
                asked = client.post(
                    "/responses",
                    json={"model": "null", "input": "ab", "max_output_tokens": 3},
                    headers={"idempotency-key": f"once-{number}"},
                )
                assert asked.status_code == 200, asked.text
                response_id = asked.json()["id"]
                shown = client.get(f"/responses/{response_id}?stream=true")
                assert "event: response.incomplete" in shown.text
                assert client.delete(f"/responses/{response_id}").status_code == 200
            chat = {"model": "null", "messages": [{"role": "user", "content": "ab"}], "n": 1}
            answered = client.post("/chat/completions", json={**chat, "max_tokens": 2})
            assert answered.status_code == 200, answered.text
            assert client.get("/models").json()["data"][0]["id"] == "null"
            for order in ("asc", "desc"):
                form = {"files": {"file": ("f.jsonl", b"{}")}, "data": {"purpose": "batch"}}
                uploaded = client.post("/files", **form)
                assert uploaded.status_code == 200, uploaded.text
                path = f"/files/{uploaded.json()['id']}"
                assert client.get(f"{path}/content").content == b"{}"
                assert len(client.get("/files", params={"order": order}).json()["data"]) == 1
                assert client.delete(path).status_code == 200
            # and: batches, to their end and before it
            given: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": LINES}}
            source = client.post("/files", **given).json()["id"]
            asked = {"input_file_id": source, "endpoint": "/v1/completions"}
            done, cancelled = (
                client.post("/batches", json={**asked, "completion_window": "24h"}).json()["id"]
                for _ in range(2)
            )
            client.post(f"/batches/{cancelled}/cancel")
            for path in (f"/batches/{done}", f"/batches/{cancelled}"):
                wait_until(lambda path=path: client.get(path).json()["status"] in ENDS)
            assert client.get(f"/batches/{done}").json()["status"] == "completed"
            assert len(client.get("/batches").json()["data"]) == 2
        assert gateway.http("/readyz") is not None
        assert run_rose("keys", "revoke", key["id"], place).returncode == 0
        # then
        assert [entry["object"] for entry in admin.acl_log()] == []
