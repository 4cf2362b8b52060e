"""Pretrained models that others made, on tasks whose rates others published: see PROTOCOL.md."""
