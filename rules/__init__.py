"""The built-in rule sets: declarative rewrites, one module for each subject.

Each module is a rule set. A rule is a function that runs once, when the module is imported::

    from onnxfold.rewrite import *

    @rule
    def relu_of_relu(x):
        \"\"\"Relu(Relu(x)) == Relu(x).\"\"\"
        return op.Relu(op.Relu(x)) >> op.Relu(x)

The docstring of a rule has the identity on which the rule is based. The tests of a set are models
in the table ``tests/rules/<module>.txt`` (`onnxfold.testing.rule_tables`). A set with ``OPTIONAL =
True`` is used only if an option names the set or one of its rules.
"""
