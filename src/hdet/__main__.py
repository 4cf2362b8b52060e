"""``python -m hdet``, and so ``torchrun -m hdet doctor``."""

from hdet.cli import app

if __name__ == "__main__":
    app(prog_name="hdet")
