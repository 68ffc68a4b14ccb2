"""What stands below every room: threads, locks and forks, files, texts."""
