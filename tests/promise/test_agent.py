"""An agent of several tool turns, while everything that serves it is killed under it."""

from collections.abc import Callable

import pytest

from rose_cli.local.broker import EmbeddedBroker
from tests.chaos.agent import AGENTS, Deployment, deployed, differences

TURNS = 4
STEP_S = 0.01
#: Events of a stream that its reader has when its servers are killed.
MIDWAY = 6


def killing_all(deployment: Deployment) -> Callable[[], None]:
    """In the first stream all gateways, in the second all workers, and again."""
    events = 0

    def on_event() -> None:
        nonlocal events
        events += 1
        if events % MIDWAY == 0 and deployment.kills < 2 * TURNS:
            gateways = (events // MIDWAY) % 2
            for service in deployment.gateways if gateways else deployment.workers:
                deployment.kill(service)

    return on_event


@pytest.mark.parametrize("api", AGENTS)
def test_an_agent_has_the_transcript_of_an_undisturbed_one(
    broker: EmbeddedBroker, queue: str, api: str
) -> None:
    with deployed(broker.url, queue, STEP_S) as deployment:
        # given
        undisturbed = AGENTS[api](deployment.urls).run(TURNS, "quiet")
        jobs = deployment.jobs()

        # when
        agent = AGENTS[api](deployment.urls, killing_all(deployment))
        disturbed = agent.run(TURNS, "disturbed")

        # then
        assert deployment.kills == 2 * TURNS
        assert disturbed.breaks > 0
        assert differences(undisturbed, disturbed) == []
        deployment.wait_ready()
        assert deployment.jobs() == 2 * jobs == 2 * TURNS
