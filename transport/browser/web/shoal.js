// shoal in a browser: an identity, a data channel to one node, calls both ways.
// The protocol: docs/spec/browser.md (joining, proof) and docs/spec/lane.md (hello, frames, calls).
// Everything that the node sends is checked before it is used, as the node checks what we send.

import { NOTHING, ShoalError, equal, fromBase64, hmac, joined, random, sha256, text, toBase64 } from "./bytes.js";
import { GOAWAY, HELLO, cut, frame, readCode, readHeader } from "./frame.js";
import { Identity, peerIdOf, verify } from "./identity.js";
import { Link, Priority } from "./link.js";
import { pack } from "./msgpack.js";

export { Identity, Link, Priority, ShoalError, peerIdOf };

const VERSION = 1;

// `swarm` is { open: "name" }, { key: bytes } or { invitation: bytes }; `expect` the node's peer id,
// where it is known. `onStep` hears what is being done: "asking", "connecting", "proving". Resolves
// to a Link. Rejects with ShoalError.
export async function join({ url = "/webrtc", identity, swarm = { open: "open" }, expect = null, handlers = {}, timeout = 20000, onStep = () => {} }) {
  const connection = new RTCPeerConnection({ iceServers: [] });
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new ShoalError("timeout", "the node did not answer in time")), timeout);
  });
  try {
    return await Promise.race([late, comeIn(connection, url, identity, swarm, expect, handlers, onStep)]);
  } catch (error) {
    connection.close();
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

async function comeIn(connection, url, identity, swarm, expect, handlers, onStep) {
  onStep("asking");
  const channel = connection.createDataChannel("shoal", { negotiated: true, id: 0, ordered: true });
  channel.binaryType = "arraybuffer";
  const inbox = new Inbox(channel);
  const open = new Promise((resolve, reject) => {
    channel.onopen = resolve;
    connection.onconnectionstatechange = () => {
      if (connection.connectionState === "failed") reject(new ShoalError("unreachable", "no way to the node's UDP port"));
    };
  });
  await connection.setLocalDescription();
  const nonce = random(32);
  const answer = await post(url, { v: VERSION, offer: connection.localDescription.sdp, nonce: toBase64(nonce) });
  const nodeKey = fromBase64(answer.key, 32);
  if (expect && peerIdOf(nodeKey) !== expect) throw new ShoalError("wrong-peer", "another node answered");
  onStep("connecting");
  await connection.setRemoteDescription({ type: "answer", sdp: answer.answer });
  const transcript = joined(nonce, fromBase64(answer.nonce, 32), fingerprintOf(connection.localDescription.sdp),
    fingerprintOf(answer.answer), identity.publicKey, nodeKey);
  await open;
  onStep("proving");
  await prove(channel, inbox, identity, nodeKey, transcript);
  const exporter = await hmac(await sha256(joined(text("shoal/browser/exporter/1\0"), transcript)), text("EXPORTER-shoal-admission"));
  const peer = peerIdOf(nodeKey);
  const rest = await greet(channel, inbox, swarm, { exporter, dialler: identity.peer, listener: peer });
  const link = new Link(channel, connection, peer, handlers);
  link.start(rest);
  return link;
}

async function post(url, document) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(document),
    credentials: "omit",
  });
  if (!response.ok) throw new ShoalError("refused", (await response.text()).slice(0, 200));
  const answer = await response.json();
  if (answer.v !== VERSION || typeof answer.answer !== "string") throw new ShoalError("bad-answer", "the answer is malformed");
  return answer;
}

function fingerprintOf(sdp) {
  const found = [...sdp.matchAll(/^a=fingerprint:(.*)$/gm)].map((match) => match[1].trim());
  if (found.length !== 1 || !/^sha-256 ([0-9A-F]{2}:){31}[0-9A-F]{2}$/i.test(found[0])) {
    throw new ShoalError("bad-answer", "not exactly one SHA-256 fingerprint");
  }
  return Uint8Array.from(found[0].slice(8).split(":"), (pair) => parseInt(pair, 16));
}

// What comes before there is a link, in order.
class Inbox {
  constructor(channel) {
    this.bytes = NOTHING;
    this.wake = () => {};
    this.over = false;
    channel.onmessage = (event) => {
      this.bytes = joined(this.bytes, new Uint8Array(event.data));
      this.wake();
    };
    channel.onclose = () => { this.over = true; this.wake(); };
  }

  // `read(bytes)` returns null while it needs more, else [value, bytes used].
  async take(read) {
    for (;;) {
      const found = read(this.bytes);
      if (found) {
        this.bytes = this.bytes.slice(found[1]);
        return found[0];
      }
      if (this.over || this.bytes.length > 8192) throw new ShoalError("not-proven", "the node hung up");
      await new Promise((resolve) => { this.wake = resolve; });
    }
  }
}

async function prove(channel, inbox, identity, nodeKey, transcript) {
  const signature = await identity.sign("shoal/browser/dialler/1", transcript);
  channel.send(joined(Uint8Array.of(VERSION), identity.publicKey, signature));
  const theirs = await inbox.take((bytes) => (bytes.length < 97 ? null : [bytes.slice(0, 97), 97]));
  const right = theirs[0] === VERSION && equal(theirs.slice(1, 33), nodeKey)
    && await verify(nodeKey, "shoal/browser/listener/1", transcript, theirs.slice(33));
  if (!right) throw new ShoalError("not-proven", "the node is not who it says");
}

async function secretOf(swarm) {
  if (swarm.key) return { kind: "swarm", ident: NOTHING, key: swarm.key, name: (await sha256(joined(text("shoal/swarm/1\0"), swarm.key))).slice(0, 16) };
  const ident = (await sha256(joined(text("shoal/invitation/1\0"), swarm.invitation))).slice(0, 8);
  return { kind: "invitation", ident, key: swarm.invitation, name: NOTHING };
}

// The token of one side (docs/spec/lane.md, section 3).
function macOf(secret, role, { exporter, dialler, listener }) {
  const parts = [text("shoal/admission/1"), text(secret.kind), text(role), exporter, text(dialler), text(listener)];
  return hmac(secret.key, joined(...parts.map((part) => joined(Uint8Array.of(part.length >> 8, part.length & 255), part))));
}

// The hellos; returns what came behind the node's.
async function greet(channel, inbox, swarm, binding) {
  const secret = swarm.open === undefined ? await secretOf(swarm) : null;
  const name = secret ? secret.name : text(swarm.open);
  const token = secret && [secret.kind, secret.ident, await macOf(secret, "dialler", binding)];
  const hello = pack({ v: [1, 1], i: random(16), w: [65536, 1 << 20, 0], s: name, f: [], r: null, p: 0, t: token });
  channel.send(frame(HELLO, 0, 0, 0, 0, hello, NOTHING));
  const first = await inbox.take((bytes) => {
    const found = cut(bytes);
    return found && [found, found.end];
  });
  if (first.kind === GOAWAY) throw readCode(first.head);
  if (first.kind !== HELLO || first.head.length > 4096) throw new ShoalError("bad-hello");
  const theirs = readHeader(first.head);
  if (!Array.isArray(theirs.v) || !(theirs.v[0] <= 1 && theirs.v[1] >= 1)) throw new ShoalError("no-common-version");
  if (name.length && !(theirs.s instanceof Uint8Array && equal(theirs.s, name))) throw new ShoalError("wrong-swarm");
  if (secret) {
    const mac = Array.isArray(theirs.t) && theirs.t[2];
    if (!(mac instanceof Uint8Array) || !equal(mac, await macOf(secret, "listener", binding))) throw new ShoalError("not-admitted");
  }
  return inbox.bytes;
}
