"""Maximum preflow by push-relabel, highest label first (Goldberg, Tarjan 1988).

Flow from several vertices is merged and pushed on as one amount, so a long chain with a source at
every link takes one pass. Labels are lower bounds of the distance to the sink; if no vertex has a
label, the sink is unreachable from all vertices above it. Excess that cannot reach the sink stays
at its vertex: this suffices for minimum cuts.
"""

from __future__ import annotations

SOURCE, SINK = 0, 1


class Network:
    """A network whose minimum cut is found from the sink's side."""

    def __init__(self) -> None:
        self._heads: list[list[int]] = [[], []]  # vertex -> its edges
        self._to: list[int] = []  # edges come in pairs: k and k ^ 1 are opposite
        self._left: list[float] = []

    def vertex(self) -> int:
        """Return a new vertex, besides SOURCE and SINK."""
        self._heads.append([])
        return len(self._heads) - 1

    def edge(self, start: int, end: int, capacity: float) -> None:
        """Add an edge; it is cut only if just its end is on the sink's side."""
        self._heads[start].append(len(self._to))
        self._to.append(end)
        self._left.append(capacity)
        self._heads[end].append(len(self._to))
        self._to.append(start)
        self._left.append(0)

    def before_sink(self) -> set[int]:
        """Return the vertices on the sink's side of the minimum cut with the smallest such side."""
        self._nowhere = nowhere = len(self._heads)  # the label without a path to the sink
        self._label = [nowhere] * nowhere
        for vertex, distance in self._distances().items():
            self._label[vertex] = distance
        self._label[SOURCE] = nowhere
        self._excess: list[float] = [0] * nowhere
        self._position = [0] * nowhere
        self._active: list[list[int]] = [[] for _ in self._heads]
        self._labelled: list[list[int]] = [[] for _ in self._heads]
        for vertex, label in enumerate(self._label):
            if label < nowhere:
                self._labelled[label].append(vertex)
        self._count = [len(vertices) for vertices in self._labelled]
        self._top = max(k for k, count in enumerate(self._count) if count)
        for edge in self._heads[SOURCE]:
            self._push(edge, self._left[edge])
        highest = self._top
        while highest > 0:
            if self._active[highest]:
                highest = self._discharge(self._active[highest].pop(), highest)
            else:
                highest -= 1
        return set(self._distances())

    def _distances(self) -> dict[int, int]:
        """Return the number of edges to the sink from each vertex that can reach it."""
        distance = {SINK: 0}
        queue = [SINK]
        for vertex in queue:
            for edge in self._heads[vertex]:
                start = self._to[edge]
                if start not in distance and self._left[edge ^ 1] > 0:
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
        """Push the excess of a vertex, relabelling it as needed; return its final label."""
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
        """Raise the label of a vertex and return it, or the old one if the sink is unreachable."""
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
        """Relabel the vertices above a label that no vertex has: they cannot reach the sink."""
        for above in range(label + 1, self._top + 1):
            for vertex in self._labelled[above]:
                if self._label[vertex] == above:
                    self._label[vertex] = self._nowhere
            self._labelled[above].clear()
            self._count[above] = 0
        self._top = label
