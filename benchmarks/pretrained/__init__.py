"""Pretrained models that others made, on tasks whose rates others published: PROTOCOL.md says what is asked."""
