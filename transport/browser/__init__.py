"""Browsers as peers: lanes over WebRTC data channels, on real sockets."""
