"""Every claim of the paper and of our pages, judged by rules from the JSON files of docs/evidence."""
