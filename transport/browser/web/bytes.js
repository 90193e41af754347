// Small things that the other files share: errors, bytes, hashes.

// What went wrong: `code` is a word of the specification, the message is for people.
export class ShoalError extends Error {
  constructor(code, message) {
    super(message || code);
    this.name = "ShoalError";
    this.code = code;
  }
}

export class Fault extends ShoalError {} // the node's mistake: it ends the link by its code

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true });
export const NOTHING = new Uint8Array(0);
export const text = (value) => encoder.encode(value);
export const readText = (bytes) => strict.decode(bytes); // throws where it is not UTF-8
export function joined(...parts) {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export const equal = (a, b) => a.length === b.length && a.every((value, at) => value === b[at]);
export const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));
export const random = (size) => crypto.getRandomValues(new Uint8Array(size));
export const sha256 = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));

export function fromBase64(value, size) {
  const bytes = Uint8Array.from(atob(value), (letter) => letter.charCodeAt(0));
  if (bytes.length !== size) throw new ShoalError("bad-answer", "a part of the answer has a wrong size");
  return bytes;
}

export async function hmac(key, bytes) {
  const usable = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", usable, bytes));
}
