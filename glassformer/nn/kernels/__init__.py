"""Fused kernels for parts of ``nn``: the same values as the formulas up to rounding, faster and in less memory.

Nothing here defines what a Transformer computes; each function has a formula in ``nn`` that tests compare it with. Two
modules are exceptions: ``quantized`` rounds weights to one byte, which changes results, and ``static_cache`` is no
kernel, but the cache of steps that are captured or compiled.

By default ``nn`` computes its formulas. A module with ``fused = True`` (``Linear``, ``Embedding``, ``LayerNorm``,
``FeedForward``, … and the modules of ``models`` around them) calls these kernels instead. Which of the two a module
uses is a plain attribute: it is the same for every call, in any thread, and for a block that is recomputed in the
backward pass. A ``Transformer`` sets it for all of its modules: ``model.fused = False`` computes everything by formula.
Attention has a choice of its own, the argument ``path`` of ``attention.scaled_dot_product_attention``.
"""
