import pytest

from roseinfer import InferenceEngine
from tests.roseinfer.clocks import Machine
from tests.roseinfer.models import forget_prefixes


@pytest.fixture
def machine(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Whose clock the test makes. It runs the engine of the test's file."""
    forget_prefixes(engine)
    return Machine(engine, monkeypatch)
