"""Volunteers: what links, NATs, places and habits they have; and the published data it rests on."""
