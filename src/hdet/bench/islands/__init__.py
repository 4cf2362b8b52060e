"""Islands, which train by themselves for a round and step from their mean, against plain data parallelism on
the same samples."""
