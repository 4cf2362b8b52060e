"""Islands against plain data parallelism on the same samples: what is lost or won, and what travels.

They train by themselves for a round and then meet; a leaf that imports the package and is imported by nobody.
"""
