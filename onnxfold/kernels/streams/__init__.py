"""Large constants that are not stored on the way to where they are needed.

There are two ways: a view is other strides on the same memory, and element-wise work is done block
by block where its result is written or stored (:mod:`.chains`). :mod:`.compute` says which results
are made so. All other large results are computed whole.
"""
