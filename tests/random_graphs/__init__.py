"""Random valid models of all op families, and whether optimizing them keeps every bit.

    python -m tests.random_graphs --graphs 1000 --seed 0
    python -m tests.random_graphs --of mutants --models DIR
    python -m tests.random_graphs --of branches

A graph is made node by node: each node runs alone on onnxruntime with the values it would see,
and stays if onnxruntime takes it (:mod:`.builder`). Ops, dtypes and attributes come from onnx's
schemas; files in ``families`` say what schemas do not: shapes and values that fit (:mod:`.call`),
and rows of the rules' tables and of ``ops.txt`` are parts of graphs, with other sizes.
Others are mutants of real models (:mod:`.mutants`), or have branches that compute the same of the
same weights (:mod:`.branch_models`).
Every graph is optimized in several ways and run with several sizes of its dims
(:mod:`.graph_check`), in a child process (`tests.case_driver`), and what fails is made small
(`onnxfold.tools.reduction`).
"""
