"""The mathematics of the Transformer, from the matrix product up.

Reading order: ``linear`` → ``norm`` → ``feedforward`` → ``input_positions`` → ``masks`` → ``attention`` →
``multi_head`` → ``block`` → ``layers``. Each module starts with its job, its paper and its shape symbols. ``kernels/``
has the same computations by fused kernels.
"""
