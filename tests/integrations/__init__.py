"""hdet within the training loops of others, with their real packages: ``make test-integrations``."""
