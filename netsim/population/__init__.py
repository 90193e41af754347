"""Volunteers: their links, NATs, places and habits, and the published data behind them."""
