"""Views over all feeds: indexes that are updated fact by fact and can be watched."""
