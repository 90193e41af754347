"""Browsers as peers, over WebRTC data channels. This room opens real sockets."""
