"""The histogram of our own says what prometheus_client's does."""

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest

from rose.histogram import Histogram
from tests.support.metric_samples import samples


def test_the_histogram_is_prometheus_clients() -> None:
    # given: values on, between, below and beyond the bounds; as the services set it
    prometheus_client.disable_created_metrics()
    bounds = (0.1, 0.5, 1, 2.5)
    observed = (0.0, 0.1, 0.10001, 0.5, 0.7, 1, 2.5, 3, 1e9)
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    one = Histogram("h", "help", bounds, ["a"], [("x",)])
    ours.register(one)
    other = prometheus_client.Histogram("h", "help", ["a"], registry=theirs, buckets=bounds)
    # when
    for number in observed:
        one.series("x").observe(number, times=2)
        for _ in range(2):
            other.labels("x").observe(number)
    # then
    page = samples(generate_latest(ours).decode())
    assert page == samples(generate_latest(theirs).decode())
    assert page["h_count", frozenset({("a", "x")})] == 2 * len(observed)
