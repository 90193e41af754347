"""What is derived from all feeds: kept up to date fact by fact, asked at once, watched."""
