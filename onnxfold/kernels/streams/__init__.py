"""Large constants that are computed box by box where they are used, and never stored.

:mod:`.plan` says what is computed so and what is stored first, :mod:`.build` makes the sources that
do it, :mod:`.compute` stores what has to be stored, :mod:`.reductions` reduces what comes in boxes.
"""
