"""`torch.ops.tessera`: the operators as torch ops, for torch.compile, torch.export and torch.library.

Importing this module registers them. For each operator X of `tessera` there is

    torch.ops.tessera.X        every result as a new tensor: attention always gives (out, lse)
    torch.ops.tessera.X_out    the results in tensors that are given by the names of X's documentation; returns nothing

`append_kv` and `qsa_append_keys` change their caches in place and have no other form; `pack_kv_blocks` has no `_out` form.
Arguments have the names, order and defaults of X, but all are tensors, numbers or strings: q_offset is an int32 tensor,
screen=(codes, scales) is screen_codes and screen_scales, lists of tuples are lists of each part (states_o, states_l,
states_m; partials_out, partials_lse), and dtypes are torch's.

Code that is compiled may as well call `tessera.X` itself: it is traced as these ops.
"""

import torch

from tessera.torch._register import register
from tessera.torch._trace import call

__all__ = ["call", "ops"]

register()
ops = torch.ops.tessera
