"""What workers do to add up sums in a tree, and what a graph of their tasks looks like."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: How many sums are added at once.
FAN_IN = 8


@dataclass(frozen=True)
class Weighed:
    """A value whose size a scheduler can ask for, and so tell where it is best added."""

    value: Any
    num_bytes: int

    def __sizeof__(self) -> int:
        return self.num_bytes


def weighed(function: Callable[[Any], Any], task: Any) -> Weighed:
    """Return what a function makes of a task."""
    return _weigh(function(task))


def added(add: Callable[[Any, Any], Any], *items: Weighed) -> Weighed:
    """Return the sum of values in their order, of which `None` counts for nothing."""
    total = None
    for item in items:
        if item.value is not None:
            total = item.value if total is None else add(total, item.value)
    return _weigh(total)


def _weigh(value: Any) -> Weighed:
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return Weighed(value, len(header) + sum(buffer.raw().nbytes for buffer in buffers))


def groups(items: Sequence[Any]) -> list[Sequence[Any]]:
    """Return items in groups of neighbours that are added at once."""
    return [items[i : i + FAN_IN] for i in range(0, len(items), FAN_IN)]


def fused(graph: dict[Any, Any], leaves: list[Any]) -> dict[Any, Any]:
    """Return a graph in which chunks are made and summed by one task, so that no row travels.

    Tasks that other chunks need as well stay as they are.
    """
    dependents: dict[Any, set[Any]] = {}
    for key, node in graph.items():
        for needed in node.dependencies:
            dependents.setdefault(needed, set()).add(key)
    result = dict(graph)
    for leaf in leaves:
        own, waiting = {leaf}, [*graph[leaf].dependencies]
        while waiting:
            key = waiting.pop()
            if key in graph and key not in own and dependents[key] <= own:
                own.add(key)
                waiting += graph[key].dependencies
        nodes = [result.pop(key) for key in own]
        result[leaf] = nodes[0].fuse(*nodes, key=leaf)
    return result
