"""TCP without I/O. Its methods get segments and the time; they return or store segments to send,
received bytes, and the time at which a timer expires.

Public: `TcpConnection`, `TcpSegment`, `PortClaims`. Imports no other package of shoal.
"""
