"""The rule sets: declarative rewrites as plain data, filed by subject.

A module here is a rule set; each rule is a module variable, and its name is the variable's::

    from onnxfold.rewrite import op, rule, values

    x = values("x")
    relu_of_relu = rule(op.Relu(op.Relu(x)) >> op.Relu(x), doc="Relu twice is Relu once.")

Its test, in ``tests/rules/test_<module>.py``, runs both sides on onnxruntime::

    def test_relu_of_relu():
        certify(rules.relu_of_relu, graph("float[N] x", "t = Relu(x)", "y = Relu(t)"), times=1)
        refuse(rules.relu_of_relu, graph("float[N] x", "t = Neg(x)", "y = Relu(t)"))

A set with ``OPTIONAL = True`` is used only if it is asked for by name. ``shapes``,
``numbers`` and ``weights`` hold expressions and conditions that several sets share, and no rules.
"""
