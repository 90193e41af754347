"""Sockets of simulated hosts, as trio programs see them: UDP, TCP, Unix; names and options."""
