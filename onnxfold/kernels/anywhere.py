"""Element-wise ops of which onnxruntime makes the same wherever an element is."""

EXACT_ANYWHERE = (
    *("Abs", "Cast", "Ceil", "Floor", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Neg", "Not", "Reciprocal", "Relu", "Round", "Sign", "Sqrt"),
)
"""Element-wise ops whose results do not depend on an element's place; but see `ORDERING`."""

VECTORIZED = ("Erf", "Exp", "Gelu", "Sigmoid", "Tanh")
"""In float32 neither do these. Log, Sin, Cos, Softplus, Elu and others do on onnxruntime: the last
few elements, which fill no vector register, are computed by other code."""

ORDERING = ("Clip", "Max", "Min", "Relu", "Sign")
"""Of two numbers of int64, onnxruntime does not always find the greater one: in vector registers it
takes the lower half for a signed number. There, what these make of one depends on its place."""
