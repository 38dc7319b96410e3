"""Mutants of real graphs: real models, changed in many ways, must compute what they computed.

Other than random graphs they have the depth, the sizes and the idioms of what people export. A
mutant is a model of its own: it is compared with its own optimized self, so a change may do what it
likes with the numbers. ``python -m tests.mutants --models DIR --mutants N --seed S`` makes and
checks many. The check is that of the random graphs.
"""
