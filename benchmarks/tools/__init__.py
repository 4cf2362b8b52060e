"""What writes docs/evidence.md and fills the README: not part of the package."""
