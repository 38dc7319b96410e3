"""The rule sets: declarative rewrites as plain data, filed by subject.

A module here is a rule set; each rule is a function, which runs once, when the rule is made::

    from onnxfold.rewrite import *

    @rule
    def relu_of_relu(x):
        \"\"\"Relu twice is Relu once.\"\"\"
        return op.Relu(op.Relu(x)) >> op.Relu(x)

Its tests are models in the table ``tests/rules/<module>.txt`` (`onnxfold.testing.rule_tables`).
A set with ``OPTIONAL = True`` is used only if it is selected by name.
"""
