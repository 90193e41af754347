"""Who holds what: signed records, content-addressed models, and their transfer."""
