"""The keys of a partition that all of its jobs share."""

from rose.protocol import Partition


def one_of_a_kind(partition: Partition) -> list[str]:
    hashes = [partition.load, partition.model, partition.workers]
    return [*partition.all_streams, *hashes, partition.dead, partition.running, partition.turn]
