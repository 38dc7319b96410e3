"""The result of a comparison: one entry for every output of every run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfold.comparison.metrics import Distance
from onnxfold.graphs import shaped
from onnxfold.table_repr import Shown


def json_number(number: float) -> float | str:
    """Return the number, or a string for infinity, which JSON does not have."""
    return number if math.isfinite(number) else str(number)


@dataclass(frozen=True, kw_only=True)
class OutputResult(Distance):
    """How one output of one run compares, and how far its values are apart.

    Attributes:
        run: The run: "seed 0", or the name of the data set that was fed.
        name: The output's name, with "[i]" for the tensors of a sequence.
        dtype: Element type of the first model's output.
        shape: Its shape.
        elements: Number of elements.
        note: Why the values could not be compared (another dtype or shape), or None.
    """

    run: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    note: str | None = None

    @property
    def bit_equal(self) -> bool:
        """Whether both outputs have the same dtype, shape and bits."""
        return self.note is None and self.differing == 0

    @property
    def error(self) -> float:
        """The largest absolute error; infinity for values that cannot be compared."""
        return math.inf if self.note is not None or self.nonfinite_mismatch else self.max_abs_error

    def __str__(self) -> str:
        return f"{self.run}: {self.name}: {self.apart}"

    @property
    def apart(self) -> str:
        """How far the two are apart, in words."""
        if self.note is not None:
            return self.note
        return (
            f"{shaped(self.dtype, self.shape)}: {self.differing} of {self.elements} elements "
            f"differ, by up to {self.max_abs_error:.3g} absolute, {self.max_rel_error:.3g} relative"
            + ("" if self.max_ulp is None else f", {self.max_ulp} ulp")
            + (f"; {self.nonfinite_mismatch} NaN or infinite" if self.nonfinite_mismatch else "")
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary; an infinite error is given as a string."""
        values = asdict(self)
        for key in ("max_abs_error", "max_rel_error"):
            values[key] = json_number(values[key])
        return {**values, "bit_equal": self.bit_equal}


@dataclass(frozen=True)
class FirstDifference:
    """The first value of the main graph, in topological order, that two models make differently.

    Attributes:
        value: Its name in both models.
        result: How far apart it is.
        nodes_a: The nodes of the first model that make it out of values that are equal, as texts.
        nodes_b: Those of the second model; none if it is stored there.
        ingredients: By the name of each value that the last of ``nodes_a`` reads: "equal" in both
            models, "in the first model only", or how far apart weights are.
        runs: How often a model was run to find it.
    """

    value: str
    result: OutputResult
    nodes_a: list[str]
    nodes_b: list[str]
    ingredients: dict[str, str]
    runs: int

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary; its keys are stable."""
        return {**asdict(self), "result": self.result.to_dict()}

    def __str__(self) -> str:
        lines = [f"the first value that differs is {self.value!r}, found in {self.runs} runs"]
        lines.append(f"  {self.result.apart}")
        for title, nodes in (("the first", self.nodes_a), ("the second", self.nodes_b)):
            lines.append(f"  {title} model " + ("makes it by" if nodes else "stores it"))
            lines += [f"    {node}" for node in nodes]
        lines += [f"  {name}: {state}" for name, state in self.ingredients.items()]
        return "\n".join(lines)


@dataclass(repr=False)
class Comparison(Shown, text="onnxfold.report.summary:compare_text"):
    """What two models make of the same inputs.

    Attributes:
        a: The first model (the original): its path, or a word for one in memory.
        b: The second model.
        backend: What both ran on: "onnxruntime", or "onnx reference evaluator".
        rtol: Relative tolerance that was allowed.
        atol: Absolute tolerance that was allowed.
        ulp: Units in the last place that were allowed.
        runs: The runs, in order: "seed 0", ...
        sizes: Sizes given to the symbolic dimensions, by run.
        outputs: One entry for every output of every run.
        problems: What makes the models differ beyond values: another interface, or a run on
            which only the second model fails.
        notes: What the reader should know about how the comparison was made.
        first_difference: The first value that differs, if it was asked for and an output does.
    """

    a: str
    b: str
    backend: str = "onnxruntime"
    rtol: float = 0.0
    atol: float = 0.0
    ulp: int = 0
    runs: list[str] = field(default_factory=list)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    outputs: list[OutputResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_difference: FirstDifference | None = None

    @property
    def equal(self) -> bool:
        """Whether all outputs of all runs are the same bit for bit."""
        return not self.problems and all(output.bit_equal for output in self.outputs)

    @property
    def passed(self) -> bool:
        """Whether all outputs of all runs are within the tolerance."""
        return not self.problems and all(output.within for output in self.outputs)

    def assert_equal(self) -> None:
        """For tests: everything is the same, within the tolerance that was given.

        Raises:
            AssertionError: It is not; the message lists what differs, and by how much.
        """
        if not self.passed:
            apart = [str(output) for output in self.outputs if not output.within]
            raise AssertionError(
                "\n  ".join([f"{self.a} and {self.b} differ:", *apart, *self.problems])
                + (f"\n{self.first_difference}" if self.first_difference else "")
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary; its keys are stable."""
        return {
            **vars(self),
            "equal": self.equal,
            "passed": self.passed,
            "outputs": [output.to_dict() for output in self.outputs],
            "first_difference": self.first_difference and self.first_difference.to_dict(),
        }
