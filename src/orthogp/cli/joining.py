"""How a command joins a cluster, and what it tells of it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orthogp.cli.console import Console

if TYPE_CHECKING:
    from orthogp.files.cluster import Cluster


@contextmanager
def joined_cluster(scheduler: str | None, console: Console) -> Iterator[Cluster | None]:
    """Give the cluster of a scheduler for as long as it is needed, `None` if there is no address.

    Says in the end what travelled.
    """
    if scheduler is None:
        yield None
        return
    from orthogp.files.cluster import Cluster

    # What goes wrong is said once, in our words.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    with Cluster(scheduler) as cluster:
        threads, before = cluster.num_threads, cluster.moved()
        workers = "1 thread" if threads == 1 else f"{threads} threads"
        console.say(f"The scheduler at {scheduler} has workers with {workers}.")
        yield cluster
        moved = max(cluster.moved() - before, 0)
        console.say(f"The workers sent each other {moved / 1e6:,.1f} MB of sums.")
