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

async function run() {
  const identity = await Identity.load();
  $("me").textContent = identity.peer;
  const link = await join({ identity, swarm: swarm(), expect: wanted.get("peer"), handlers });
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
