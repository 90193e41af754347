"""Hole punching: opens a direct path between two peers through the NATs of both sides.

The two sides exchange their candidate addresses, check pairs of addresses by UDP, dial each other
by TCP at the same moment, and predict the ports of symmetric NATs.

Public: `Puncher`, `PunchLimits`, `PunchBudget`, `PunchOutcome`, `Candidate`. Imports `host/`,
`link/`, `reach/` and `udp/`.
"""
