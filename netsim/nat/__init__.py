"""Gateways of volunteers: NATs, firewalls, carrier NATs, and their services."""
