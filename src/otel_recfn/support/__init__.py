"""The base of all other folders: threads, locks and forks, files, texts."""
