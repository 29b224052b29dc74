"""What ``torch.compile`` needs to know before it compiles parts of a model."""

import torch
from einops import rearrange
from torch import nn

# All blocks of all models in a process count as one function, of which PyTorch compiles 8 versions and no more: too few
# for encoder and decoder, with and without gradients, of any size.
VERSIONS = 64


def prepare_compiler() -> None:
    """Raise PyTorch's limit of versions per function, for the whole process, and let einops register its types."""
    torch._dynamo.config.recompile_limit = max(VERSIONS, torch._dynamo.config.recompile_limit)
    for tensor in (torch.empty(1, 1), nn.Parameter(torch.empty(1, 1))):
        rearrange(tensor, "a b -> b a")  # einops registers each type at first use, which would invalidate a graph
