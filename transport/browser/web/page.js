// The page: joins the node that served it, and lets a person call its methods.
// After `#`: `peer=` the node's peer id, `swarm=` an open swarm's name, `key=` or `invitation=` a
// secret in base64url. What stands there is not sent to any server, this one included.

import { Identity, ShoalError, join } from "./shoal.js";

const $ = (id) => document.getElementById(id);
const wanted = new URLSearchParams(location.hash.slice(1));

function secretBytes(value) {
  const letters = atob(value.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(letters, (letter) => letter.charCodeAt(0));
}

function swarm() {
  if (wanted.has("key")) return { key: secretBytes(wanted.get("key")) };
  if (wanted.has("invitation")) return { invitation: secretBytes(wanted.get("invitation")) };
  return { open: wanted.get("swarm") || "open" };
}

function show(error) {
  return error instanceof ShoalError ? `${error.code}: ${error.message}` : String(error);
}

const handlers = {
  // What a node may ask of this page.
  echo: ({ header, payload }) => ({ header, payload }),
};

// What it waits for, and for how long already.
class Waiting {
  constructor() {
    this.began = Date.now();
    this.timer = setInterval(() => this.show(), 500);
  }

  step(words, late = "") {
    this.words = words;
    this.late = late;
    this.since = Date.now();
    this.show();
  }

  show() {
    const waited = Date.now() - this.since;
    const late = this.late && waited > 4000 ? `; ${this.late}` : "";
    $("state").textContent = `joining, ${Math.round((Date.now() - this.began) / 1000)} s: ${this.words}${late}`;
  }

  end() {
    clearInterval(this.timer);
  }
}

const STEPS = {
  identity: ["making a key", "the browser's storage does not answer: is it a private window?"],
  asking: ["asking the node", "the node does not answer: does it still run?"],
  connecting: ["connecting over UDP", "no packet has come through: a firewall may block UDP to the node"],
  proving: ["the node and this browser prove who they are", "the node does not answer"],
};

async function enter() {
  if (!window.isSecureContext) {
    throw new ShoalError("insecure", "browsers let a page use keys only over HTTPS or from their own computer. "
      + `Open http://localhost:${location.port || 80}/ on the node's computer, or forward the port to this one: `
      + `ssh -L ${location.port || 80}:${location.host} USER@${location.hostname}`);
  }
  const waiting = new Waiting();
  const onStep = (name) => waiting.step(...STEPS[name]);
  try {
    onStep("identity");
    const identity = await Identity.load();
    $("me").textContent = identity.peer;
    return await join({ identity, swarm: swarm(), expect: wanted.get("peer"), handlers, onStep });
  } finally {
    waiting.end();
  }
}

async function run() {
  const link = await enter();
  window.shoal = link; // for the console
  window.addEventListener("pagehide", () => link.close());
  $("node").textContent = link.peer;
  $("state").textContent = "joined";
  $("send").disabled = false;
  $("ask").onsubmit = async (event) => {
    event.preventDefault();
    try {
      const payload = new TextEncoder().encode($("text").value);
      const reply = await link.call($("method").value, {}, payload, { timeout: 10000 });
      $("answer").textContent = new TextDecoder().decode(reply.payload);
    } catch (error) {
      $("answer").textContent = show(error);
    }
  };
  $("state").textContent = `ended: ${await link.ended}`;
  $("send").disabled = true;
}

run().catch((error) => { $("state").textContent = show(error); });
