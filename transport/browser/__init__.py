"""Browsers as peers, over WebRTC data channels. This room opens real sockets.

Public: `BrowserGate`, `BrowserSession`. Imports `handshake/`, `host/`, `lane/` and `nat/`.
"""
