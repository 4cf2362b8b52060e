"""``python -m benchmarks.pretrained``."""

from benchmarks.pretrained.command import main

if __name__ == "__main__":
    main()
