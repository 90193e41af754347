"""Browsers as peers: lanes over WebRTC data channels. It uses real sockets."""
