// The map of the cluster: prefill workers to the left, those that generate to the right, hand-offs as wires between them.

import { element, keepChildren, setAttributes, setText, svgElement } from "./dom.js";
import { count, percent, perSecond } from "./format.js";
import { WorkerRates } from "./rates.js";

const MAX_WIRED = 8; // workers of a side; with more, the cards are rows and the table alone tells who transfers to whom
const WELL = new Set(["ready"]);
const PASSING = new Set(["starting", "connecting", "draining"]);
const byId = (id) => document.getElementById(id);

export class ClusterMap {
  constructor() {
    this.rates = new WorkerRates();
    this.handoffs = [];
    new ResizeObserver(() => this.drawWires()).observe(byId("map"));
  }

  update(state) {
    this.rates.update(state.at, state.workers);
    this.handoffs = state.handoffs;
    const prefill = state.workers.filter((worker) => worker.role === "prefill");
    const others = state.workers.filter((worker) => worker.role !== "prefill");
    byId("map").classList.toggle("dense", Math.max(prefill.length, others.length) > MAX_WIRED);
    this.fill(byId("prefill"), prefill);
    this.fill(byId("decode"), others);
    byId("pool").hidden = !state.pool_nodes.length;
    keepChildren(byId("pool-nodes"), state.pool_nodes, (node) => node.incarnation, makeWorker, updateNode);
    setText(byId("cluster-summary"), summary(state));
    this.drawWires();
  }

  fill(parent, workers) {
    keepChildren(parent, workers, (worker) => worker.incarnation, makeWorker, (card, worker) =>
      updateWorker(card, worker, this.rates.of(worker.incarnation)),
    );
    parent.classList.toggle("none", !workers.length);
  }

  drawWires() {
    const isDense = byId("map").classList.contains("dense");
    const wires = isDense ? [] : wiresOf(this.handoffs);
    const make = () => {
      const group = svgElement("g");
      group.append(svgElement("path"), svgElement("text"));
      return group;
    };
    keepChildren(byId("wires"), wires, (wire) => wire.key, make, (group, wire) => {
      const [path, text] = group.children;
      setAttributes(path, { d: wire.path, "stroke-width": wire.width, class: wire.isActive ? "wire active" : "wire" });
      setAttributes(text, { x: wire.labelAt[0], y: wire.labelAt[1] - 5 });
      setText(text, wire.hasRoom && wires.length <= 4 ? wire.label : "");
    });
  }
}

/** Those between cards that are there. Each card's wires leave it one below the other, in the order of their far ends. */
function wiresOf(handoffs) {
  const base = byId("map").getBoundingClientRect();
  const ends = handoffs
    .map((each) => ({ each, from: cardOf("prefill", each.prefill), to: cardOf("decode", each.decode) }))
    .filter(({ from, to }) => from && to)
    .map(({ each, from, to }) => ({ each, from: from.getBoundingClientRect(), to: to.getBoundingClientRect() }));
  const y = (card, other, [near, far]) => {
    const same = ends.filter((end) => end[near].top === card.top).sort((a, b) => a[far].top - b[far].top);
    const place = same.findIndex((end) => end[far].top === other.top) + 1;
    return card.top - base.top + (card.height * place) / (same.length + 1);
  };
  return ends.map(({ each, from, to }) => {
    const start = [from.right - base.left, y(from, to, ["from", "to"])];
    const end = [to.left - base.left, y(to, from, ["to", "from"])];
    return wire(each, start, end);
  });
}

function wire(each, [x1, y1], [x2, y2]) {
  const bend = (x2 - x1) / 2;
  return {
    key: `${each.prefill} ${each.decode} ${each.transport}`,
    path: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`,
    labelAt: [x1 + 10, y1],
    width: Math.min(6, 1.5 + Math.log10(1 + each.num_minute + each.num_now)),
    isActive: each.num_now > 0,
    label: `${each.transport} ${count(each.num_minute)}/min`,
    hasRoom: x2 - x1 > 200,
  };
}

function cardOf(side, worker) {
  return [...byId(side).children].find((card) => card.dataset.worker === worker);
}

function summary({ workers, pool_nodes: nodes }) {
  const well = workers.filter((worker) => WELL.has(worker.state)).length;
  const hosts = new Set([...workers, ...nodes].map((member) => member.node).filter(Boolean)).size;
  const ready = `${well} of ${workers.length} workers ready`;
  return hosts > 1 ? `${ready} · ${hosts} nodes` : ready;
}

function makeWorker(worker) {
  const card = element("div", "worker");
  card.dataset.worker = worker.worker;
  const head = element("p", "head");
  head.append(element("i", "dot"), element("b", "", worker.worker), element("span", "state"));
  const bar = element("div", "bar");
  bar.append(element("i"));
  card.append(head, element("p", "load"), bar, element("p", "more"));
  card.title = [worker.address, worker.node].filter(Boolean).join(" on ");
  return card;
}

function updateWorker(card, worker, rates) {
  const [head, load, bar, more] = card.children;
  showState(card, head, worker.state, worker.role === "mixed" ? "mixed" : "");
  setText(load, `${count(worker.num_running)} running · ${count(worker.num_waiting)} waiting`);
  bar.firstChild.style.width = `${100 * (worker.kv_usage ?? 0)}%`;
  bar.classList.toggle("full", (worker.kv_usage ?? 0) > 0.9);
  const busy = rates && `${percent(rates.busy)} busy`;
  const tokens = rates && perSecond(Math.round(rates.tokens), "tok");
  setText(more, [`KV ${percent(worker.kv_usage)}`, busy, tokens].filter(Boolean).join(" · "));
}

function updateNode(card, node) {
  showState(card, card.firstChild, node.state, "");
  card.classList.add("node");
}

function showState(card, head, state, role) {
  const kind = WELL.has(state) ? "ok" : PASSING.has(state) ? "warn" : "bad";
  card.classList.remove("ok", "warn", "bad");
  card.classList.add(kind);
  setText(head.children[2], [role, kind === "ok" ? "" : state].filter(Boolean).join(" · "));
}
