"""HTTP requests as bytes."""


def http(method: str, target: str, host: str, body: bytes = b"", **headers: str) -> bytes:
    """A request; `Content_Type` stands for Content-Type."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
