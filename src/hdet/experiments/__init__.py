"""One file per claim; each measures it and writes one JSON file."""
