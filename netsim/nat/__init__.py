"""Gateways as volunteers have them: NATs, firewalls, carrier NATs, and their services."""
