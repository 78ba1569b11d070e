// Asks the proxy for its state once a second, while somebody looks, and shows it.

import { Cards } from "./cards.js";
import { ClusterMap } from "./cluster.js";
import { setText } from "./dom.js";
import { seconds } from "./format.js";
import { showErrors, showHandoffs } from "./tables.js";

const INTERVAL_MS = 1000;
const TIMEOUT_MS = 5000;
const NUM_POINTS = 300;
const byId = (id) => document.getElementById(id);

const cards = new Cards(byId("cards"));
const map = new ClusterMap();
let points = [];
let startedAt = null; // of the proxy that the points are from

async function ask(after) {
  const answer = await fetch(`dashboard/state?after=${after}`, { signal: AbortSignal.timeout(TIMEOUT_MS) });
  if (!answer.ok) throw new Error(answer.status === 401 ? "it asks for an API key: load the page again" : `it answers ${answer.status}`);
  return answer.json();
}

async function newestState() {
  const state = await ask(points.length ? points[points.length - 1].number : -1);
  if (startedAt === null || state.started_at === startedAt) return state;
  points = []; // another proxy: it counts from 0
  return ask(-1);
}

function show(state) {
  startedAt = state.started_at;
  points = [...points, ...state.points].slice(-NUM_POINTS);
  setText(byId("model"), state.model);
  document.title = `${state.model} · pdserve`;
  showStatus(state.is_ready ? "ok" : "bad", state.is_ready ? "serving" : "no worker is ready");
  setText(byId("summary"), `proxy up ${seconds(Math.floor(state.at - state.started_at)).replace(/\.\d+/, "")}`);
  const isAway = state.is_controller_away;
  showBanner(isAway ? "The controller does not answer: this proxy serves on, with the workers that it knew last." : "");
  cards.update(state, points);
  map.update(state);
  showHandoffs(state);
  showErrors(state);
}

function showStatus(kind, text) {
  byId("status").className = `status ${kind}`;
  setText(byId("status"), text);
}

function showBanner(text) {
  byId("banner").hidden = !text;
  setText(byId("banner"), text);
}

async function look() {
  try {
    show(await newestState());
    document.body.classList.remove("stale");
  } catch (error) {
    document.body.classList.add("stale");
    showStatus("bad", "no connection");
    const why = error.name === "TimeoutError" ? `it did not answer within ${TIMEOUT_MS / 1000} s` : error.message;
    showBanner(`The proxy cannot be asked: ${why}. What you see is from before.`);
  }
}

async function run() {
  for (;;) {
    const asked = performance.now();
    if (!document.hidden) await look();
    await new Promise((done) => setTimeout(done, Math.max(100, INTERVAL_MS - (performance.now() - asked))));
  }
}

run();
