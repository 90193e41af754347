// MessagePack, as far as headers need it: nil, booleans, numbers, text, bytes, arrays, maps.

import { Fault, ShoalError, joined, readText, text } from "./bytes.js";

export function pack(value) {
  if (value === null || value === undefined) return Uint8Array.of(0xc0);
  if (value === false || value === true) return Uint8Array.of(value ? 0xc3 : 0xc2);
  if (typeof value === "number" || typeof value === "bigint") return packNumber(value);
  if (typeof value === "string") return packSized(text(value), 0xa0, 32, [0xd9, 0xda, 0xdb]);
  if (value instanceof Uint8Array) return packSized(value, 0, 0, [0xc4, 0xc5, 0xc6]);
  if (Array.isArray(value)) return joined(packCount(value.length, 0x90, 0xdc), ...value.map(pack));
  const entries = value instanceof Map ? [...value] : Object.entries(value);
  return joined(packCount(entries.length, 0x80, 0xde), ...entries.flat(1).map(pack));
}

function packNumber(value) {
  const view = new DataView(new ArrayBuffer(9));
  if (typeof value === "number" && !Number.isSafeInteger(value)) {
    view.setUint8(0, 0xcb);
    view.setFloat64(1, value);
  } else if (value >= 0 && value < 128) {
    return Uint8Array.of(Number(value));
  } else if (value < 0) {
    view.setUint8(0, 0xd3);
    view.setBigInt64(1, BigInt(value));
  } else {
    view.setUint8(0, 0xcf);
    view.setBigUint64(1, BigInt(value));
  }
  return new Uint8Array(view.buffer);
}

function packSized(bytes, fix, fixLimit, kinds) {
  const size = bytes.length;
  if (size < fixLimit) return joined(Uint8Array.of(fix | size), bytes);
  if (size < 256) return joined(Uint8Array.of(kinds[0], size), bytes);
  if (size < 65536) return joined(Uint8Array.of(kinds[1], size >> 8, size & 255), bytes);
  throw new ShoalError("too-large", "headers hold short values; use the payload");
}

function packCount(count, fix, kind) {
  if (count < 16) return Uint8Array.of(fix | count);
  if (count < 65536) return Uint8Array.of(kind, count >> 8, count & 255);
  throw new ShoalError("too-large", "headers hold few values; use the payload");
}

// One value that fills `bytes`; maps become objects without a prototype. Throws Fault.
export function unpack(bytes) {
  const reader = new Unpacker(bytes);
  let value;
  try {
    value = reader.value(0);
  } catch (error) {
    throw error instanceof Fault ? error : new Fault("bad-head", "a header is malformed");
  }
  if (reader.at !== bytes.length) throw new Fault("bad-head", "bytes are left over");
  return value;
}

class Unpacker {
  constructor(bytes) {
    this.bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.at = 0;
  }

  number(size) { // an unsigned number of 1, 2 or 4 bytes; DataView throws beyond the end
    const at = this.at;
    this.at += size;
    return size === 1 ? this.view.getUint8(at) : size === 2 ? this.view.getUint16(at) : this.view.getUint32(at);
  }

  wide(method) { // a number of 8 bytes, as a bigint where a number would lose digits
    const value = this.view[method](this.at);
    this.at += 8;
    if (typeof value !== "bigint") return value;
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }

  slice(size) {
    if (size > this.bytes.length - this.at) throw new Fault("bad-head", "a value ends too early");
    this.at += size;
    return this.bytes.slice(this.at - size, this.at);
  }

  many(count, depth) {
    if (count > this.bytes.length - this.at) throw new Fault("bad-head", "a value ends too early");
    return Array.from({ length: count }, () => this.value(depth + 1));
  }

  map(count, depth) {
    const found = Object.create(null);
    if (2 * count > this.bytes.length - this.at) throw new Fault("bad-head", "a value ends too early");
    for (let left = count; left > 0; left -= 1) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new Fault("bad-head", "a key is not text");
      found[key] = this.value(depth + 1);
    }
    return found;
  }

  value(depth) {
    if (depth > 32) throw new Fault("bad-head", "a header is nested too deep");
    const kind = this.number(1);
    if (kind < 0x80) return kind;
    if (kind < 0x90) return this.map(kind & 15, depth);
    if (kind < 0xa0) return this.many(kind & 15, depth);
    if (kind < 0xc0) return readText(this.slice(kind & 31));
    if (kind >= 0xe0) return kind - 256;
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: case 0xc5: case 0xc6: return this.slice(this.number(1 << (kind - 0xc4)));
      case 0xca: this.at += 4; return this.view.getFloat32(this.at - 4);
      case 0xcb: return this.wide("getFloat64");
      case 0xcc: case 0xcd: case 0xce: return this.number(1 << (kind - 0xcc));
      case 0xcf: return this.wide("getBigUint64");
      case 0xd0: this.at += 1; return this.view.getInt8(this.at - 1);
      case 0xd1: this.at += 2; return this.view.getInt16(this.at - 2);
      case 0xd2: this.at += 4; return this.view.getInt32(this.at - 4);
      case 0xd3: return this.wide("getBigInt64");
      case 0xd9: case 0xda: case 0xdb: return readText(this.slice(this.number(1 << (kind - 0xd9))));
      case 0xdc: case 0xdd: return this.many(this.number(kind === 0xdc ? 2 : 4), depth);
      case 0xde: case 0xdf: return this.map(this.number(kind === 0xde ? 2 : 4), depth);
      default: throw new Fault("bad-head", "an extension type");
    }
  }
}
