// A live link over a data channel: calls both ways (docs/spec/lane.md, sections 4 and 5).

import { Fault, NOTHING, ShoalError, joined, readText, text } from "./bytes.js";
import {
  ACK, CALL, CANCEL, CREDIT, DATA, FRAME_BYTES, GOAWAY, HEAD_BYTES, MORE, OF_REPLY, OPEN, PART, PING, PONG,
  POST, REFUSAL, REPLY, RESET, cut, frame, packHeader, packNamed, readCode, readHeader, readNamed,
} from "./frame.js";

const MESSAGE_BYTES = 16384; // of the data channel
const WHOLE_BYTES = 16 * 1024 * 1024; // payload of a call or reply
const BACKLOG_BYTES = 32 * 1024 * 1024; // unsent, beyond which calls are refused here
const AHEAD_BYTES = 256 * 1024; // handed to the browser ahead of the wire
const HANDLERS = 64; // at work at once
const IDLE_MS = 2000, SILENT_MS = 3500, STALL_MS = 500;
export const Priority = Object.freeze({ CONTROL: 0, ACTIVATION: 1, BULK: 2 });

// To the node: `call` asks it, `handle` answers it, `ended` tells why it is over.

export class Link {
  constructor(channel, connection, peer, handlers) {
    this.peer = peer; // the node's peer id
    this.alive = true;
    this.ended = new Promise((resolve) => { this.tellEnd = resolve; });
    this.handlers = new Map(Object.entries(handlers));
    this.channel = channel;
    this.connection = connection;
    this.queues = [[], [], []]; // by priority: what has not left, encoded when it does
    this.queued = 0; // bytes in them
    this.calls = new Map(); // ours, by id, that wait for an answer
    this.lastId = 0; // of our calls
    this.seenId = 0; // of the node's
    this.partials = [null, null, null]; // messages of the node's of which parts are missing
    this.running = new Map(); // handlers at work, by the node's call id
    this.received = this.sent = this.unreported = this.unreportedBytes = 0;
    this.rest = NOTHING;
    this.heard = this.ticked = performance.now();
    this.pinged = false;
  }

  start(early) {
    this.channel.onmessage = (event) => this.arrived(new Uint8Array(event.data));
    this.channel.onclose = () => this.end("unreachable");
    this.channel.bufferedAmountLowThreshold = AHEAD_BYTES / 4;
    this.channel.onbufferedamountlow = () => this.pump();
    this.timer = setInterval(() => this.tick(), 1000);
    this.arrived(early);
  }

  // Ask the node; resolves to { header, payload }. Rejects with ShoalError: the node's code,
  // `timeout`, `too-large`, `busy`, or why the link ended.
  call(method, header = {}, payload = NOTHING, { timeout = 30000, priority = Priority.CONTROL } = {}) {
    return new Promise((resolve, reject) => {
      const call = { id: 0, resolve, reject, priority, dead: false };
      try {
        this.push(CALL, priority, call, packNamed(method, packHeader(header)), payload);
      } catch (error) {
        reject(error);
        return;
      }
      call.timer = setTimeout(() => this.giveUp(call, method), timeout);
      this.pump();
    });
  }

  // Tell the node something; nobody answers.
  post(method, header = {}, payload = NOTHING, { priority = Priority.CONTROL } = {}) {
    this.push(POST, priority, { id: 0 }, packNamed(method, packHeader(header)), payload);
    this.pump();
  }

  // `handler({ method, header, payload, peer })` returns { header, payload } or nothing, or throws.
  handle(method, handler) {
    this.handlers.set(method, handler);
  }

  close(code = "closed") {
    if (!this.alive) return;
    this.write(GOAWAY, 0, 0, 0, packNamed(code, NOTHING), NOTHING);
    this.end(code);
  }

  // Sending.

  push(kind, priority, call, head, payload) {
    if (!this.alive) throw new ShoalError("closed", "the link has ended");
    if (head.length > HEAD_BYTES || payload.length > WHOLE_BYTES) throw new ShoalError("too-large");
    if (this.queued + payload.length > BACKLOG_BYTES) throw new ShoalError("busy", "too much is unsent");
    const queue = this.queues[priority];
    let at = 0;
    do { // the first frame says how much will come, PARTs bring the rest
      const piece = payload.subarray(at, at + FRAME_BYTES);
      const more = at + piece.length < payload.length ? MORE : 0;
      const flags = priority | more | (at && kind === REPLY ? OF_REPLY : 0);
      queue.push({ kind: at ? PART : kind, flags, call, offset: at || payload.length, head: at ? NOTHING : head, payload: piece });
      this.queued += piece.length;
      at += piece.length;
    } while (at < payload.length);
  }

  pump() {
    while (this.alive && this.channel.readyState === "open" && this.channel.bufferedAmount < AHEAD_BYTES) {
      const queue = this.queues.find((one) => one.length);
      if (!queue) break;
      const { kind, flags, call, offset, head, payload } = queue.shift();
      this.queued -= payload.length;
      if (call.dead && call.id === 0) continue; // given up before it began to leave
      if (kind === CALL || kind === POST) {
        call.id = ++this.lastId; // here, so that they leave in order
        if (kind === CALL) this.calls.set(call.id, call);
      }
      this.write(kind, flags, call.id, offset, head, payload);
    }
  }

  write(kind, flags, id, offset, head, payload) {
    if (this.channel.readyState !== "open") return;
    if (kind >= CALL) this.sent += 1;
    this.unreported = this.unreportedBytes = 0;
    const bytes = frame(kind, flags, this.received % 2 ** 32, id, offset, head, payload);
    for (let at = 0; at < bytes.length; at += MESSAGE_BYTES) {
      this.channel.send(bytes.subarray(at, at + MESSAGE_BYTES));
    }
  }

  giveUp(call, method) {
    call.dead = true;
    if (this.calls.delete(call.id)) {
      this.queues[call.priority].push({ kind: CANCEL, flags: call.priority, call, offset: 0, head: NOTHING, payload: NOTHING });
      this.pump();
    }
    call.reject(new ShoalError("timeout", `\`${method}\` had no answer in time`));
  }

  tick() {
    const now = performance.now(), late = now - this.ticked - 1000;
    this.ticked = now;
    if (late > STALL_MS) this.heard = Math.min(now, this.heard + late); // our own loop stood still
    const quiet = now - this.heard;
    if (this.pinged && quiet > SILENT_MS) this.end("silent");
    else if (!this.pinged && quiet > IDLE_MS) {
      this.pinged = true;
      this.write(PING, 0, 0, 1, NOTHING, NOTHING);
    }
  }

  end(code, message) {
    if (!this.alive) return;
    this.alive = false;
    clearInterval(this.timer);
    for (const call of [...this.calls.values(), ...this.queues.flat().map((item) => item.call)]) {
      clearTimeout(call.timer);
      if (call.reject) call.reject(new ShoalError(code, message));
    }
    this.queues = [[], [], []];
    this.channel.onclose = this.channel.onmessage = null;
    this.channel.close(); // what was written still leaves
    setTimeout(() => this.connection.close(), 250);
    this.tellEnd(code);
  }

  // Receiving.

  arrived(bytes) {
    this.heard = performance.now();
    this.pinged = false;
    this.rest = this.rest.length ? joined(this.rest, bytes) : bytes;
    try {
      for (let found; this.alive && (found = cut(this.rest)); ) {
        this.rest = this.rest.subarray(found.end);
        this.onFrame(found);
      }
      if (this.unreported >= 64 || this.unreportedBytes >= 1 << 20) this.write(ACK, 0, 0, 0, NOTHING, NOTHING);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      this.close(error.code);
    }
  }

  onFrame(found) {
    if ((found.flags & 3) > 2) throw new Fault("bad-flags");
    if ((this.sent - found.received) % 2 ** 32 < 0) throw new Fault("bad-count");
    if (found.kind >= CALL) {
      this.received += 1;
      this.unreported += 1;
      this.unreportedBytes += found.head.length + found.payload.length;
    }
    switch (found.kind) {
      case GOAWAY: { const why = readCode(found.head); this.end(why.code, why.message); break; }
      case PING: this.write(PONG, 0, 0, found.rawOffset, NOTHING, NOTHING); break;
      case PONG: case ACK: break;
      case CALL: case POST: this.onCall(found); break;
      case REPLY: this.onReply(found); break;
      case REFUSAL: this.onRefusal(found); break;
      case PART: this.onPart(found); break;
      case CANCEL: this.running.delete(found.id); break;
      case OPEN: // our hello allowed no streams
        this.queues[0].push({ kind: RESET, flags: 0, call: { id: found.id }, offset: 0, head: packNamed("unknown-method", NOTHING), payload: NOTHING });
        this.pump();
        break;
      case DATA: case CREDIT: case RESET: break; // for a stream that we have reset
      default: throw new Fault("bad-kind");
    }
  }

  onCall(found) {
    if (found.id !== this.seenId + 1) throw new Fault("bad-id");
    this.seenId = found.id;
    const [name, rest] = readNamed(joined(found.head, Uint8Array.of(0)), 64);
    const call = { method: readText(name), header: readHeader(rest.subarray(0, -1)), peer: this.peer };
    const post = found.kind === POST;
    this.firstPart(found, false, (payload) => this.serve(found.id, { ...call, payload }, post, found.flags & 3));
  }

  onReply(found) {
    const call = this.callOf(found.id);
    const header = readHeader(found.head);
    this.firstPart(found, true, (payload) => this.settle(call, () => call.resolve({ header, payload })));
  }

  onRefusal(found) {
    const call = this.callOf(found.id), why = readCode(found.head);
    this.settle(call, () => call.reject(why));
  }

  callOf(id) {
    if (id < 1 || id > this.lastId) throw new Fault("bad-id");
    return this.calls.get(id) || null; // null: given up meanwhile
  }

  settle(call, answer) {
    if (!call || call.dead) return;
    clearTimeout(call.timer);
    this.calls.delete(call.id);
    answer();
  }

  firstPart(found, ofReply, deliver) {
    const total = found.offset, size = found.payload.length, slot = found.flags & 3;
    if (!(found.flags & MORE)) {
      if (size !== total) throw new Fault("bad-length");
      deliver(found.payload);
      return;
    }
    if (total > WHOLE_BYTES) throw new Fault("message-too-large");
    if (size >= total || this.partials[slot]) throw new Fault("bad-part");
    const bytes = new Uint8Array(total);
    bytes.set(found.payload);
    this.partials[slot] = { id: found.id, ofReply, bytes, have: size, deliver };
  }

  onPart(found) {
    const slot = found.flags & 3, partial = this.partials[slot], size = found.payload.length;
    const ofReply = Boolean(found.flags & OF_REPLY);
    if (!partial || partial.id !== found.id || partial.ofReply !== ofReply) throw new Fault("bad-part");
    if (found.offset !== partial.have || size === 0 || size > partial.bytes.length - partial.have) throw new Fault("bad-part");
    partial.bytes.set(found.payload, partial.have);
    partial.have += size;
    const whole = partial.have === partial.bytes.length;
    if (Boolean(found.flags & MORE) === whole) throw new Fault("bad-part");
    if (whole) {
      this.partials[slot] = null;
      partial.deliver(partial.bytes);
    }
  }

  async serve(id, call, post, priority) {
    const handler = this.handlers.get(call.method);
    const answered = { id };
    const refuse = (code, message = "") => {
      if (!post && this.alive) this.push(REFUSAL, priority, answered, packNamed(code, text(message)), NOTHING);
    };
    if (!handler || this.running.size >= HANDLERS) {
      refuse(handler ? "busy" : "unknown-method");
    } else {
      this.running.set(id, true);
      try {
        const { header = {}, payload = NOTHING } = (await handler(call)) || {};
        if (!post && this.running.has(id) && this.alive) this.push(REPLY, priority, answered, packHeader(header), payload);
      } catch (error) { // the one place where everything is caught: a handler is the page's code
        refuse(error instanceof ShoalError ? error.code : "failed", error instanceof ShoalError ? error.message : "");
      } finally {
        this.running.delete(id);
      }
    }
    this.pump();
  }
}
