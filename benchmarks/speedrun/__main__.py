"""``python -m benchmarks.speedrun``."""

from benchmarks.speedrun.command import main

if __name__ == "__main__":
    main()
