from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.gateway.sdk.deployments import Deployment, open_deployment, openai_client


@pytest.fixture(scope="package")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with open_deployment(tmp_path_factory.mktemp("model")) as deployment:
        yield deployment


@pytest.fixture
def client(deployment: Deployment) -> Iterator[OpenAI]:
    with openai_client(deployment.url, timeout=90) as client:
        yield client
