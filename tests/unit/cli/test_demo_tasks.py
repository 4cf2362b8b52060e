"""What the demo trains: a small transformer like any other."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from hdet.cli.demo_tasks import _Block


def test_a_block_is_torchs_own_layer() -> None:
    """Normed first, each position sees those before it, and both branches are added to what came in."""
    block = _Block(width=8, heads=2)
    gelu = partial(F.gelu, approximate="tanh")
    layer = nn.TransformerEncoderLayer(8, 2, 32, 0.0, gelu, batch_first=True, norm_first=True, bias=False)
    ours = [block.query_key_value, block.out, block.mlp[0], block.mlp[2]]
    theirs = [layer.self_attn.in_proj_weight, layer.self_attn.out_proj.weight, layer.linear1.weight]
    with torch.no_grad():
        for weight, module in zip([*theirs, layer.linear2.weight], ours, strict=True):
            weight.copy_(module.weight)
    x = torch.randn(3, 5, 8)
    expected = layer(x, nn.Transformer.generate_square_subsequent_mask(5), is_causal=True)
    torch.testing.assert_close(block(x), expected)
