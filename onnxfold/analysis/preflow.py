"""Maximum preflow by pushing and relabelling, the furthest vertex first (Goldberg, Tarjan 1988).

What is pushed from many places flows together and is pushed on as one amount, so a long chain with
a source at every link takes one walk. Labels are lower bounds of the distance to the sink; where a
label has no vertex any more, the sink is out of reach of all vertices above it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

SOURCE, SINK = 0, 1


class Preflow:
    """A network on which as much as possible is pushed into the sink.

    What cannot reach the sink stays where it got stuck: that is enough to read off minimum cuts.

    Args:
        heads: The edges that start at each vertex; SOURCE and SINK are the first two vertices.
        to: The vertex that each edge leads to. Edges come in pairs: k and k ^ 1 are opposite.
        left: The capacity of each edge; afterwards what is left of it.
    """

    def __init__(self, heads: Sequence[Sequence[int]], to: Sequence[int], left: list[float]):
        self._heads = heads
        self._to = to
        self._left = left
        self._nowhere = len(heads)  # the label of what cannot reach the sink
        self._label = self._distances()
        self._label[SOURCE] = self._nowhere
        self._excess: list[float] = [0] * len(heads)
        self._position = [0] * len(heads)
        self._active: list[list[int]] = [[] for _ in heads]
        self._labelled: list[list[int]] = [[] for _ in heads]
        for vertex, label in enumerate(self._label):
            if label < self._nowhere:
                self._labelled[label].append(vertex)
        self._count = [len(vertices) for vertices in self._labelled]
        self._top = max((k for k, count in enumerate(self._count) if count), default=0)

    def run(self) -> None:
        """Push until nothing more reaches the sink."""
        for edge in self._heads[SOURCE]:
            self._push(edge, self._left[edge])
        highest = self._top
        while highest > 0:
            if self._active[highest]:
                highest = self._discharge(self._active[highest].pop(), highest)
            else:
                highest -= 1

    def _distances(self) -> list[int]:
        """Edges from each vertex to the sink."""
        distance = [self._nowhere] * len(self._heads)
        distance[SINK] = 0
        queue = deque([SINK])
        while queue:
            vertex = queue.popleft()
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if distance[start] == self._nowhere and self._left[edge ^ 1] > 0:
                    distance[start] = distance[vertex] + 1
                    queue.append(start)
        return distance

    def _push(self, edge: int, amount: float) -> None:
        end = self._to[edge]
        self._left[edge] -= amount
        self._left[edge ^ 1] += amount
        if not self._excess[end] and 0 < self._label[end] < self._nowhere:
            self._active[self._label[end]].append(end)
        self._excess[end] += amount

    def _discharge(self, vertex: int, label: int) -> int:
        """Push what the vertex has, relabelling it as needed; returns its label at the end."""
        edges = self._heads[vertex]
        while self._excess[vertex] and self._label[vertex] == label:
            position = self._position[vertex]
            if position == len(edges):
                label = self._relabel(vertex, label)
                continue
            edge = edges[position]
            if self._left[edge] > 0 and self._label[self._to[edge]] == label - 1:
                amount = min(self._excess[vertex], self._left[edge])
                self._push(edge, amount)
                self._excess[vertex] -= amount
            else:
                self._position[vertex] = position + 1
        return label

    def _relabel(self, vertex: int, label: int) -> int:
        """Give the vertex a higher label; returns it, or the old one where the sink is too far."""
        self._position[vertex] = 0
        self._count[label] -= 1
        if not self._count[label]:
            self._label[vertex] = self._nowhere
            self._cut_off(label)
            return label
        higher = 1 + min(self._label[self._to[e]] for e in self._heads[vertex] if self._left[e] > 0)
        self._label[vertex] = min(higher, self._nowhere)
        if higher >= self._nowhere:
            return label
        self._labelled[higher].append(vertex)
        self._count[higher] += 1
        self._top = max(self._top, higher)
        return higher

    def _cut_off(self, label: int) -> None:
        """No vertex has this label: those above cannot reach the sink any more."""
        for above in range(label + 1, self._top + 1):
            for vertex in self._labelled[above]:
                if self._label[vertex] == above:
                    self._label[vertex] = self._nowhere
            self._labelled[above].clear()
            self._count[above] = 0
        self._top = label
