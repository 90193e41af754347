"""TLS 1.3 between two peer ids, as a class without sockets: bytes in, bytes out.

Both ends present a self-signed certificate that proves their peer id (`certificate.py`).
Resumption, early data and renegotiation are disabled. (The server still sends two tickets of 79
bytes that identify nothing, because pyOpenSSL lacks SSL_CTX_set_num_tickets.) The record layer is
that of OpenSSL, used through pyOpenSSL and memory BIOs. The standard library's `ssl` cannot be
used, because it cannot request a client certificate that is self-signed and unknown.
"""

from dataclasses import dataclass

from OpenSSL import SSL, crypto

# The OpenSSL functions that pyOpenSSL's own read and write call. Calling them directly saves a copy
# of each record and a query of OpenSSL's status. As measured, this saves a fifth of the cost of
# bulk data, and a third of the cost of a small message.
from OpenSSL._util import ffi, lib
from OpenSSL._util import no_zero_allocator as allocate

from ..defaults import ALPN, TIE, TLS_HANDSHAKE_BYTES
from ..errors import TransportError
from ..identity import PeerId
from ..lane.frame import Bytes
from .certificate import Certificate, peer_of_certificate

# AES-128 first: it is a third faster than AES-256 with hardware support, and strong enough.
_CIPHERS = b"TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384"
# Key exchange: the post-quantum hybrid, or X25519 with a peer whose OpenSSL lacks it ("?": also
# here). OpenSSL sends a key share for the first group alone, and by default also for X25519.
_GROUPS = b"?X25519MLKEM768:X25519"
# The signatures that `certificate.py` accepts. By default OpenSSL names two dozen. With these two
# lists, a client hello fits in one packet; by default it is 40 bytes larger than that.
_SIGNATURES = (
    b"ed25519:ecdsa_secp256r1_sha256:ecdsa_secp384r1_sha384:ecdsa_secp521r1_sha512"
    b":rsa_pss_rsae_sha256:rsa_pss_rsae_sha384:rsa_pss_rsae_sha512"
)
_RECORD_BYTES = 16384  # largest plaintext of a record (RFC 8446, section 5.1)
_HEADER_BYTES = 5
_RECORD_OVERHEAD = 22  # bytes of header, content type and authentication tag
_SLACK = 512  # bytes of room for an alert or a key update in addition to written data
_FLIGHT_BYTES = 8192  # upper bound for the size of one handshake flight of ours
_PARTIAL_WRITE = 1  # SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets and does not export
# SSL_MODE_RELEASE_BUFFERS, not exported either. An idle connection then needs 36 KiB, not 61 KiB.
_RELEASE_BUFFERS = 0x10
_CHARS = ffi.typeof("char[]")
_ALL_OPTIONS = SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION


@dataclass(slots=True)
class _Verdict:
    """Result of the certificate check. OpenSSL passes this object to `_check_certificate`, which
    fills it in."""

    expect: PeerId | None
    peer: PeerId | None = None
    error: TransportError | None = None


class Tls:
    """One TLS connection. Pass what arrives to `feed`, and send what `outgoing` returns.

    `expect` is the peer id that the other end must have; None accepts any. After an error the
    connection has ended, but `outgoing` may still return the alert that tells the peer the reason.
    """

    def __init__(
        self, certificate: Certificate, *, server: bool, expect: PeerId | None = None
    ) -> None:
        self.established = False
        """Whether both ends are authenticated."""
        self.closed = False  # whether the peer has ended its direction (close_notify)
        self._verdict = _Verdict(expect)
        self.server = server
        self._fed = 0  # bytes received before the handshake was done
        self._records = 0  # complete records that OpenSSL has not decrypted yet, a count
        self._unread = 0  # bytes fed since the last read
        self._rest = 0  # bytes missing from an incomplete record
        self._head = b""  # the first bytes of a record, too few to know its size
        self._swollen = True  # whether OpenSSL's buffers may be large and should be replaced
        self._unsent = 0  # upper bound for the size of what `outgoing` returns next
        self._ssl = SSL.Connection(_context(certificate, server), None)
        self._ssl.set_app_data(self._verdict)
        self._raw = self._ssl._ssl
        if server:
            self._ssl.set_accept_state()
        else:
            self._ssl.set_connect_state()
            self._handshake()

    @property
    def peer(self) -> PeerId:
        """The authenticated peer. Raises TransportError (`tls-failed`) before the end of the
        handshake."""
        if not self.established or self._verdict.peer is None:
            raise TransportError("tls-failed", "the handshake is not done")
        return self._verdict.peer

    def feed(self, ciphertext: Bytes) -> None:
        """Process ciphertext from the peer.

        Raises TransportError with code `tls-failed`, or during the handshake with code
        `bad-certificate` or `wrong-peer` if the peer's certificate is not accepted.
        """
        if not ciphertext:
            return
        size = len(ciphertext)
        if lib.BIO_write(self._ssl._into_ssl, _pointer(ciphertext), size) != size:
            raise TransportError("tls-failed", "OpenSSL is out of memory")
        self._count_records(ciphertext)
        self._unread += size
        if size > _RECORD_BYTES:
            self._swollen = True
        if not self.established:
            self._fed += size
            self._handshake()
            if not self.established and self._fed > TLS_HANDSHAKE_BYTES:
                raise TransportError("tls-failed", "the handshake is too long")

    def read(self) -> Bytes:
        """Return all plaintext that has arrived, b"" if there is none.

        Raises TransportError with code `tls-failed` if a record is invalid.
        """
        if not self._records or not self.established:
            return b""
        # One buffer for all records, which are copied once. Tiny records must not make it large.
        room = self._unread + _RECORD_BYTES
        if room > self._records * _RECORD_BYTES:
            room = self._records * _RECORD_BYTES
        buffer = allocate(_CHARS, room)
        size = self._unread = 0
        while self._records:
            got = lib.SSL_read(self._raw, buffer + size if size else buffer, room - size)
            if got <= 0:
                self._stop_reading(got)
                break
            self._records -= 1
            size += got
        if 2 * size >= room:  # the view keeps at most twice its size in memory
            return memoryview(ffi.buffer(buffer, size)).toreadonly()
        plaintext: bytes = ffi.unpack(buffer, size)
        return plaintext

    def write(self, plaintext: Bytes) -> None:
        """Encrypt bytes for the peer, any number at once. `outgoing` returns the ciphertext.

        Raises TransportError with code `tls-failed` before the end of the handshake, or if OpenSSL
        fails.
        """
        size = len(plaintext)
        if not self.established:
            raise TransportError("tls-failed", "the handshake is not done")
        if not size:
            return
        try:
            got = lib.SSL_write(self._raw, _pointer(plaintext), size)
            if got < size:
                self._ssl._raise_ssl_error(self._raw, got)
        except SSL.Error as error:
            raise _failed(error) from None
        if size > _RECORD_BYTES:
            self._swollen = True
        self._unsent += size + _RECORD_OVERHEAD * (size // _RECORD_BYTES + 1) + _SLACK

    def outgoing(self) -> Bytes:
        """Return the ciphertext to send to the peer, b"" if there is none."""
        if not self._unsent:
            return b""
        expected, self._unsent = self._unsent, 0
        piece = self._take(expected)
        if len(piece) < expected:
            return piece
        pieces = [piece]
        while piece := self._take(expected):
            pieces.append(piece)
        return b"".join(pieces)

    def release(self) -> None:
        """Replace large buffers that are empty. This is cheap, and is to be called from time to
        time.

        The memory BIOs between OpenSSL and this class keep the size of the largest batch, about 280
        KiB in each direction, or 4 KiB after a handshake. SSL_set_bio frees the old ones.

        Raises MemoryError if there is no memory for new ones.
        """
        if not self._swollen or not self.established or self._unsent:
            return
        if self._waiting(self._ssl._into_ssl):
            return
        into, out = lib.BIO_new(lib.BIO_s_mem()), lib.BIO_new(lib.BIO_s_mem())
        if ffi.NULL in (into, out):
            raise MemoryError
        lib.SSL_set_bio(self._ssl._ssl, into, out)
        self._ssl._into_ssl, self._ssl._from_ssl = into, out
        self._swollen = False

    def close(self) -> None:
        """End this side's direction. `outgoing` then returns the message for the peer
        (close_notify).

        Raises TransportError `tls-failed` if OpenSSL reports an error.
        """
        if self.established:
            try:
                self._ssl.shutdown()
            except SSL.Error as error:
                raise _failed(error) from None
            self._unsent += _SLACK

    def exporter(self, label: bytes, size: int) -> bytes:
        """Return `size` bytes of keying material that only the two ends know (RFC 8446, section
        7.5).

        Raises TransportError `tls-failed` before the handshake is done.
        """
        if not self.established:
            raise TransportError("tls-failed", "the handshake is not done")
        material: bytes = self._ssl.export_keying_material(label, size)
        return material

    @staticmethod
    def _waiting(bio: object) -> bool:
        """Return whether a memory BIO contains bytes."""
        return bool(lib.BIO_get_mem_data(bio, ffi.new("char **")))

    def _take(self, size: int) -> Bytes:
        """Return up to `size` bytes of ciphertext for the peer."""
        buffer = allocate(_CHARS, size)
        got = lib.BIO_read(self._ssl._from_ssl, buffer, size)
        if got <= 0:
            return b""
        if got < _RECORD_BYTES:  # a copy costs less than a view of it
            small: bytes = ffi.unpack(buffer, got)
            return small
        return memoryview(ffi.buffer(buffer, got))

    def _count_records(self, data: Bytes) -> None:
        """Count the complete records in received bytes by their headers.

        `read` then calls OpenSSL only if there is a record. Otherwise OpenSSL would raise an
        exception, which costs more than a small record.
        """
        at = self._rest
        if self._head:
            data = self._head + data
            self._head = b""
        elif at:
            if at > len(data):
                self._rest = at - len(data)
                return
            self._records += 1
        size = len(data)
        while at + _HEADER_BYTES <= size:
            at += _HEADER_BYTES + (data[at + 3] << 8 | data[at + 4])
            if at > size:
                self._rest = at - size
                return
            self._records += 1
        self._rest = 0
        if at < size:
            self._head = bytes(data[at:])

    def _stop_reading(self, result: int) -> None:
        """Handle a read that returned no data: the records contain none, the peer has ended its
        direction, or TLS failed."""
        self._records = 0
        try:
            self._ssl._raise_ssl_error(self._ssl._ssl, result)
        except SSL.WantReadError:  # records without data: key update, leftovers of a handshake
            self._unsent += _SLACK
        except SSL.ZeroReturnError:
            self.closed = True
        except SSL.Error as error:
            self._unsent += _SLACK
            raise _failed(error) from None

    def _handshake(self) -> None:
        """Continue the handshake, as far as received bytes allow."""
        self._unsent += _FLIGHT_BYTES
        try:
            self._ssl.do_handshake()
        except SSL.WantReadError:
            return
        except SSL.Error as error:
            raise self._verdict.error or _failed(error) from None
        self._check_end()
        self.established = True

    def _check_end(self) -> None:
        """Check the results of the handshake. Raises TransportError if the peer is not
        acceptable."""
        if self._verdict.error or self._verdict.peer is None:
            raise self._verdict.error or TransportError("bad-certificate", "got no certificate")
        if self._ssl.get_alpn_proto_negotiated() != ALPN:
            raise TransportError("tls-failed", "the peer does not speak `shoal/1`")
        # Only a client finds the peer's own certificate in the chain (SSL_get_peer_cert_chain).
        chain = self._ssl.get_peer_cert_chain() or []
        if len(chain) > (0 if self.server else 1):
            raise TransportError("bad-certificate", "the peer sent more than one certificate")


def _pointer(data: Bytes) -> object:
    """Return `data` in a form that OpenSSL's functions accept. Bytes are passed unchanged, which
    costs half as much as a view."""
    return data if isinstance(data, bytes) else ffi.from_buffer(data)


def _failed(error: SSL.Error) -> TransportError:
    """Return the error that reports an OpenSSL error."""
    details = error.args[0] if error.args and isinstance(error.args[0], list) else []
    reason = details[0][2] if details else type(error).__name__
    return TransportError("tls-failed", f"the TLS connection failed ({reason})")


def _context(certificate: Certificate, server: bool) -> SSL.Context:
    """Return the TLS context of a certificate for one role. Contexts are cached."""
    context = certificate.contexts.get(server)
    if context is None:
        context = certificate.contexts[server] = _make_context(certificate, server)
    return context


def _make_context(certificate: Certificate, server: bool) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD if server else SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_options(_ALL_OPTIONS)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_tls13_ciphersuites(_CIPHERS)
    for choose, names in (
        (lib.SSL_CTX_set1_curves_list, _GROUPS),
        (lib.SSL_CTX_set1_sigalgs_list, _SIGNATURES),
    ):
        if choose(context._context, names) != 1:
            raise RuntimeError(f"OpenSSL does not accept {names.decode()}")
    context.clear_mode(_PARTIAL_WRITE)
    context.set_mode(_RELEASE_BUFFERS)
    context.use_privatekey(certificate.key)
    context.use_certificate(certificate.x509)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _check_certificate)
    if server:
        context.set_alpn_select_callback(_select_alpn)
    else:
        context.set_alpn_protos([ALPN, TIE + certificate.tie])
    return context


def _select_alpn(connection: SSL.Connection, offered: list[bytes]) -> bytes:
    """Choose the application protocol. OpenSSL calls this on the server."""
    if ALPN not in offered:  # an exception in the callback ends the handshake with an alert
        raise TransportError("tls-failed", "the peer does not speak `shoal/1`")
    return ALPN


def _check_certificate(
    connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, fine: int
) -> bool:
    """Check the peer's certificate, and store the result in the connection's `_Verdict`.

    OpenSSL calls this once for each of its own objections (self-signed, dates, …). The objections
    are ignored.
    """
    verdict: _Verdict = connection.get_app_data()
    if verdict.peer is None and verdict.error is None:
        try:
            verdict.peer = _peer_at_depth(certificate, depth, verdict.expect)
        except TransportError as refusal:
            verdict.error = refusal
    return verdict.error is None


def _peer_at_depth(certificate: crypto.X509, depth: int, expect: PeerId | None) -> PeerId:
    """Return the peer that a certificate proves. Raises TransportError if it is not accepted."""
    if depth:
        raise TransportError("bad-certificate", "the peer sent more than one certificate")
    peer = peer_of_certificate(crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate))
    if expect is not None and peer != expect:
        raise TransportError("wrong-peer", f"`{peer}` answered instead of `{expect}`")
    return peer
