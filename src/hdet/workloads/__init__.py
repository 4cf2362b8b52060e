"""Small real tasks: each a model, its data, its loss."""
