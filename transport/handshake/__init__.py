"""From a byte stream to an authenticated peer: TLS 1.3 with libp2p's certificate, and the hello.

Public: `SecureStream`, `Certificate`, `Tls`, `Admission` and its implementations (`OpenSwarm`,
`Invited`), `HelloExchange`, and `Connected`, the result. Imports `host/` and `lane/`.
"""
