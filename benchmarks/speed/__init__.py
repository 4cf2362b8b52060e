"""What hdet costs: ``converge | step | autolr | stacked | feed``, one file each. Every one has
``run``, which gives plain JSON, and ``table``, which shows it."""
