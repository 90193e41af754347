// Frames and what is in their heads (docs/spec/lane.md, section 2).

import { Fault, NOTHING, ShoalError, joined, text } from "./bytes.js";
import { pack, unpack } from "./msgpack.js";

export const FRAME_BYTES = 65536; // payload of a frame
export const HEAD_BYTES = 32768;
const PREFIX_BYTES = 28;

export const HELLO = 1, GOAWAY = 2, PING = 3, PONG = 4, ACK = 5, CALL = 0x10, POST = 0x11, REPLY = 0x12,
  REFUSAL = 0x13, PART = 0x14, CANCEL = 0x15, OPEN = 0x20, DATA = 0x21, CREDIT = 0x22, RESET = 0x23;
export const MORE = 4, OF_REPLY = 8;

function putWide(view, at, value) {
  view.setUint32(at, Math.floor(value / 2 ** 32));
  view.setUint32(at + 4, value % 2 ** 32);
}

const getWide = (view, at) => view.getUint32(at) * 2 ** 32 + view.getUint32(at + 4);

export function frame(kind, flags, received, id, offset, head, payload) {
  const bytes = joined(new Uint8Array(PREFIX_BYTES), head, payload);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, head.length + payload.length);
  view.setUint8(4, kind);
  view.setUint8(5, flags);
  view.setUint16(6, head.length);
  view.setUint32(8, received);
  putWide(view, 12, id);
  if (offset instanceof Uint8Array) bytes.set(offset, 20);
  else putWide(view, 20, offset);
  return bytes;
}

// The first frame of `bytes` and how long it is, null while it is incomplete.
export function cut(bytes) {
  if (bytes.length < PREFIX_BYTES) return null;
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const length = view.getUint32(0), head = view.getUint16(6);
  if (head > HEAD_BYTES || length < head || length - head > FRAME_BYTES) throw new Fault("frame-too-large");
  const end = PREFIX_BYTES + length;
  if (bytes.length < end) return null;
  const split = PREFIX_BYTES + head;
  return {
    end,
    kind: view.getUint8(4),
    flags: view.getUint8(5),
    received: view.getUint32(8),
    id: getWide(view, 12),
    offset: getWide(view, 20),
    rawOffset: bytes.slice(20, 28),
    head: bytes.slice(PREFIX_BYTES, split),
    payload: bytes.slice(split, end),
  };
}

export const packHeader = (header) => (Object.keys(header).length ? pack(header) : NOTHING);

export function readHeader(bytes) {
  const header = bytes.length ? unpack(bytes) : Object.create(null);
  if (header === null || Object.getPrototypeOf(header) !== null) throw new Fault("bad-head", "a header is no map");
  return header;
}

export function packNamed(name, rest) {
  const bytes = text(name);
  return joined(Uint8Array.of(bytes.length), bytes, rest);
}

export function readNamed(head, limit) {
  const size = head.length ? head[0] : 0;
  if (size === 0 || size > limit || head.length <= size) throw new Fault("bad-head");
  return [head.slice(1, 1 + size), head.slice(1 + size)];
}

export function readCode(head) {
  const [name, words] = readNamed(head, 32);
  const code = String.fromCharCode(...name);
  if (!/^[a-z0-9-]+$/.test(code)) throw new Fault("bad-head");
  const shown = new TextDecoder().decode(words).slice(0, 200);
  return new ShoalError(code, shown.replace(/\p{C}/gu, "\ufffd"));
}
