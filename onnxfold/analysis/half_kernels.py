"""Which ops onnxruntime computes in half precision: asked of the one that is installed."""

from __future__ import annotations

import functools

from onnxfold.kernels.inference import schema_of


@functools.cache
def has_half_kernel(op_type: str, domain: str, opset: int) -> bool:
    """True if onnxruntime may compute an op in half precision, or what ONNX says it is made of."""
    if (domain, op_type) in _half_kernels():
        return True
    schema = schema_of(op_type, opset, domain)
    if schema is None:
        return False
    if getattr(schema, "has_context_dependent_function", False):  # onnx's stubs do not know it
        return True
    return any((p.domain, p.op_type) in _half_kernels() for p in schema.function_body.node)


@functools.cache
def _half_kernels() -> frozenset[tuple[str, str]]:
    """Domains and names of the half kernels that the installed onnxruntime has for the CPU."""
    try:
        from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def
    except ImportError:  # not all of its builds tell
        return frozenset()
    return frozenset(
        (kernel.domain, kernel.op_name)
        for kernel in get_all_opkernel_def()
        if kernel.provider == "CPUExecutionProvider"
        and any("tensor(float16)" in types for types in kernel.type_constraints.values())
    )
