"""Generate random valid models of all op families, optimize them, and compare the outputs.
    python -m tests.random_graphs --graphs 1000 --seed 0
    python -m tests.random_graphs --of mutants --models DIR
    python -m tests.random_graphs --of branches

A graph is built node by node (:mod:`.builder`). onnxruntime runs each node alone with the values of
its operands. The node is kept if onnxruntime accepts it. Ops, dtypes and attributes come from the
schemas of onnx (:mod:`.call`). The modules in ``families`` choose the shapes and values that
schemas do not specify. They also add rows of the rules' tables and of ``ops.txt`` to graphs, often
with other sizes.

Other models are mutants of real models (:mod:`.mutants`), have branches that compute equal values
from equal weights (:mod:`.branch_models`), or contain constants that are expanded to dynamic sizes
(:mod:`.broadcast_models`).

Every model is optimized in several ways and run with several sizes of its dims
(:mod:`.graph_check`). A model can also be split (:mod:`.split_check`). A child process runs the
checks (`tests.case_driver`). Failing models are reduced (:mod:`.graph_runs`).
"""
