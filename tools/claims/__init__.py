"""Every claim of the paper and of the README, judged by rules from the JSON files of docs/evidence."""
