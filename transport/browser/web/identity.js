// Who a browser is: an Ed25519 key and the libp2p peer id made from it (WebCrypto, IndexedDB).

import { joined, text } from "./bytes.js";

const LETTERS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const ID_PREFIX = Uint8Array.of(0, 0x24, 8, 1, 0x12, 0x20); // identity multihash of a protobuf key

export function peerIdOf(publicKey) {
  let number = 0n;
  const bytes = joined(ID_PREFIX, publicKey);
  for (const byte of bytes) number = number * 256n + BigInt(byte);
  let found = "";
  for (; number > 0n; number /= 58n) found = LETTERS[Number(number % 58n)] + found;
  return "1" + found; // for the one zero byte in front
}

function signedBytes(domain, bytes) {
  const name = text(domain), size = new Uint8Array(4);
  new DataView(size.buffer).setUint32(0, name.length);
  return joined(size, name, bytes);
}

export class Identity {
  constructor(keys, publicKey) {
    this.keys = keys;
    this.publicKey = publicKey;
    this.peer = peerIdOf(publicKey);
  }

  // A new one; its private key cannot be read by any script, only used.
  static async make() {
    const keys = await crypto.subtle.generateKey({ name: "Ed25519" }, false, ["sign", "verify"]);
    return Identity.of(keys);
  }

  static async of(keys) {
    return new Identity(keys, new Uint8Array(await crypto.subtle.exportKey("raw", keys.publicKey)));
  }

  // The one that this browser keeps for this site, made on the first visit.
  static async load(name = "identity") {
    const store = await openStore();
    try {
      const known = await asked(store.transaction("keys").objectStore("keys").get(name));
      if (known) return await Identity.of(known);
      const made = await Identity.make();
      await asked(store.transaction("keys", "readwrite").objectStore("keys").put(made.keys, name));
      return made;
    } finally {
      store.close();
    }
  }

  async sign(domain, bytes) {
    const signed = signedBytes(domain, bytes);
    return new Uint8Array(await crypto.subtle.sign({ name: "Ed25519" }, this.keys.privateKey, signed));
  }
}

export async function verify(publicKey, domain, bytes, signature) {
  const key = await crypto.subtle.importKey("raw", publicKey, { name: "Ed25519" }, false, ["verify"]);
  return crypto.subtle.verify({ name: "Ed25519" }, key, signature, signedBytes(domain, bytes));
}

function openStore() {
  const request = indexedDB.open("shoal", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("keys");
  return asked(request);
}

function asked(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
