"""The rule sets: declarative rewrites as plain data, filed by subject.

A module here is a rule set; each rule is a function, which runs once, when the rule is made::

    from onnxfold.rewrite import op, rule

    @rule
    def relu_of_relu(x):
        \"\"\"Relu twice is Relu once.\"\"\"
        return op.Relu(op.Relu(x)) >> op.Relu(x)

Its tests, in the table ``tests/rules/<module>.txt``, are models and the ops that are left::

    relu_of_relu
      (float[N] x) t = Relu(x) y = Relu(t) -> Relu
      - t = Neg(x)

A set with ``OPTIONAL = True`` is used only if it is selected by name.
"""
