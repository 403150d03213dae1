"""The faults: what each does to the fleet, its network and its Redis, and when they strike."""

from tests.chaos.faults.injector import FaultInjector as FaultInjector
