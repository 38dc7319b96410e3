"""Generate random valid models of all op families and test that optimization keeps every bit.

    python -m tests.random_graphs --graphs 1000 --seed 0
    python -m tests.random_graphs --of mutants --models DIR
    python -m tests.random_graphs --of branches

A graph is built node by node (:mod:`.builder`). onnxruntime runs each node alone with the values of
its operands. The node is kept if onnxruntime accepts it. Ops, dtypes and attributes come from the
schemas of onnx (:mod:`.call`). The files in ``families`` contain the shapes and values that schemas
do not specify. Rows of the rules' tables and of ``ops.txt`` are parts of graphs, with other sizes.

Other models are mutants of real models (:mod:`.mutants`), have branches that compute equal values
from equal weights (:mod:`.branch_models`), or contain expanded constants of dynamic sizes
(:mod:`.broadcast_models`).

Every graph is optimized in several ways and run with several sizes of its dims
(:mod:`.graph_check`). This happens in a child process (`tests.case_driver`). Failing models are
reduced (`onnxfold.tools.reduction`).
"""
