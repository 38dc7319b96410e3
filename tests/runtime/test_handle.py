"""Test that runs with a handle use only the handle's constants, and that outputs outlive it."""

import numpy as np
import pytest
from reference_session import reference_options
from runtime_models import original, parse, random, session_on, value_of

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.handle import Binding
from onnxfold.support.errors import UsageError

TENANTS = """g (float[n, 4] x, float[4, 4] a, float[4] s) => (float[n, 4] y) {
    ab = MatMul(a, a)
    m = MatMul(x, ab)
    y = Add(m, s)
}"""


@pytest.fixture(params=[False, True])
def session(request):
    """Return a session whose entry reads the folded tensor ab and the runtime constant s."""
    return session_on(parse(TENANTS), "a", "s", specialize=request.param)


def constants(seed):
    return {"a": random(4, 4, seed=seed), "s": random(4, seed=seed + 50)}


def by_run(session, handle, feeds):
    return session.run(None, feeds, handle=handle)[0]


def by_handle(session, handle, feeds):
    return handle.run(None, feeds)[0]


def by_values(session, handle, feeds):
    values = {name: value_of(array) for name, array in feeds.items()}
    return session.run_with_ort_values(None, values, handle=handle)[0].numpy()


def by_binding(bind):
    """Return a function that runs a session with a binding, after ``bind`` has bound each input."""

    def way(session, handle, feeds):
        binding = session.io_binding(handle)
        binding.bind_cpu_input("x", random(3, 4))
        binding.clear_binding_inputs()  # keeps the tensors of the handle
        for name, array in feeds.items():
            bind(binding, name, array)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    return way


def memory(binding, name, array):
    binding.bind_input(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)


def value(binding, name, array):
    binding.bind_ortvalue_input(name, value_of(array))


BINDING = [*map(by_binding, (Binding.bind_cpu_input, value, memory))]
WAYS = [by_run, by_handle, by_values, *BINDING]


@pytest.mark.parametrize("way", WAYS)
def test_tenants_never_mix(session, way):
    x = random(3, 4, seed=7)
    tenants = [constants(seed) for seed in range(3)]
    handles = [session.fold(tenant) for tenant in tenants]
    for _ in range(2):
        for tenant, handle in zip(tenants, handles, strict=True):
            want = original(parse(TENANTS), {"x": x, **tenant})[0]
            assert way(session, handle, {"x": x}).tobytes() == want.tobytes()
            for name, array in (*constants(9).items(), ("ab", random(4, 4))):
                with pytest.raises(UsageError, match=f"'{name}' is part of the handle"):
                    way(session, handle, {"x": x, name: array})


@pytest.mark.parametrize("way", [way for way in WAYS if way is not by_handle])
def test_a_handle_of_another_session_is_refused(session, way):
    other = session_on(parse(TENANTS), "a", "s")
    with pytest.raises(UsageError, match="belongs to another session"):
        way(session, other.fold(constants(0)), {"x": random(3, 4)})


def test_a_handle_has_its_tensors_before_and_after_a_run(session):
    given = constants(0)
    handle = session.fold(given)
    for _ in range(2):
        tensors = {name: value.numpy() for name, value in handle.tensors().items()}
        assert tensors["s"].tobytes() == given["s"].tobytes()
        assert np.allclose(tensors["ab"], given["a"] @ given["a"])
        handle.run(None, {"x": random(3, 4)})


def test_a_fold_takes_every_constant_and_nothing_else(session):
    with pytest.raises(UsageError, match="'s' has no value yet"):
        session.fold({"a": random(4, 4)})
    with pytest.raises(UsageError, match="'x' is not a runtime constant; runtime constants: a, s"):
        session.fold({**constants(0), "x": random(3, 4)})
    with pytest.raises(UsageError, match="'ab' is part of the handle"):
        session.run(None, {"x": random(3, 4), **constants(0), "ab": random(4, 4)})


@pytest.mark.parametrize("specialize", [False, True])
def test_outputs_outlive_the_handle(specialize):
    """Entry reads ab and s, which are also outputs of the model."""
    model = parse(TENANTS.replace("y)", "y, float[4, 4] ab, float[4] s)"))
    options = reference_options()  # without an arena, onnxruntime frees memory at once
    given = {"sess_options": options, "cache": FoldCache(max_bytes=0), "specialize": specialize}
    session = session_on(model, "a", "s", **given)
    x = value_of(random(3, 4))
    for seed in range(20):
        handle = session.fold(constants(seed))
        found = [*handle.run_with_ort_values(None, {"x": x})]
        binding = handle.io_binding()
        binding.bind_ortvalue_input("x", x)
        for name in ("y", "ab", "s"):
            binding.bind_output(name)
        session.run_with_iobinding(binding)
        found += binding.get_outputs()
        want = [value.numpy().copy() for value in found]
        del handle, binding
        others = [np.full(n, -1, np.float32) for n in (4, 16) * 8]
        assert others and all(map(np.array_equal, want, [value.numpy() for value in found]))
