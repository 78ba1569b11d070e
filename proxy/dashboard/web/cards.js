// The six figures of the requests: each a large number for the last minute, what belongs to it, and five minutes as lines.

import { Chart } from "./chart.js";
import { element, setText } from "./dom.js";
import { count, perSecond, round, seconds, share } from "./format.js";

const AT_LEAST = 0.95; // of requests that should meet a goal: below it the number is red

const quantile = (kind, name) => (point) => point.quantiles[kind]?.[name];
const rate = (what) => (point) => point.rates[what] ?? 0;

function times(kind, more = []) {
  return [
    { name: "p95", className: "strong", value: quantile(kind, "p95") },
    { name: "p50", className: "soft", value: quantile(kind, "p50") },
    ...more,
  ];
}

function attained(state, label) {
  const asked = state.minute.counts[`slo_${label}_asked`] ?? 0;
  return asked ? (state.minute.counts[`slo_${label}_attained`] ?? 0) / asked : null;
}

function timeCard(kind, title, label, more) {
  return {
    title,
    chart: new Chart(times(kind, more), seconds),
    goal: (state) => state.goals[`${label}_s`],
    value: (state) => seconds(state.minute.quantiles[kind]?.p95),
    unit: "p95",
    notes: (state) => {
      const met = attained(state, label);
      const goal = state.goals[`${label}_s`];
      const named = goal == null ? "their own goals" : round(seconds(goal));
      return met == null
        ? [goal == null ? "no goal is set" : `goal ${round(seconds(goal))}`]
        : [`${share(met)} within ${named}`];
    },
    isBad: (state) => (attained(state, label) ?? 1) < AT_LEAST,
  };
}

const CARDS = [
  timeCard("ttft", "Time to first token", "ttft", [
    { name: "batch p95", className: "faint", value: quantile("ttft_batch", "p95"), isOptional: true },
  ]),
  timeCard("tpot", "Time per output token", "tpot"),
  {
    title: "Throughput",
    chart: new Chart(
      [
        { name: "generated", className: "decode", value: (point) => point.generated_tokens },
        { name: "prompt", className: "prefill", value: (point) => point.prompt_tokens },
      ],
      (value) => perSecond(value, "tok"),
    ),
    value: ({ minute }) => perSecond(minute.duration_s ? minute.generated_tokens / minute.duration_s : null, "tok"),
    unit: "generated",
    notes: ({ minute }) => [
      `${perSecond(minute.duration_s ? minute.prompt_tokens / minute.duration_s : null, "tok")} of prompts`,
    ],
  },
  {
    title: "Queue",
    chart: new Chart(
      [
        { name: "waiting", className: "strong", value: (point) => point.queued },
        { name: "at workers", className: "soft", value: (point) => point.running },
      ],
      count,
    ),
    value: ({ queued }) => count(queued.interactive + queued.batch),
    unit: "wait now",
    notes: ({ queued, minute }) => [
      queued.batch ? `${count(queued.batch)} of them batch` : "",
      minute.quantiles.queue ? `p95 waited ${seconds(minute.quantiles.queue.p95)}` : "",
    ],
  },
  {
    title: "Requests",
    chart: new Chart(
      [
        { name: "answered", className: "strong", value: rate("ok") },
        { name: "refused", className: "warn", value: rate("refused") },
        { name: "failed", className: "bad", value: rate("failed") },
      ],
      perSecond,
    ),
    value: ({ minute }) => perSecond(minute.duration_s ? (minute.counts.ok ?? 0) / minute.duration_s : null),
    unit: "answered",
    notes: ({ minute }) => [
      ...["failed", "refused", "cancelled"].filter((what) => minute.counts[what]).map((what) => `${minute.counts[what]} ${what}`),
      minute.retries ? `${minute.retries} tried again` : "",
    ],
    isBad: ({ minute }) => Boolean(minute.counts.failed),
  },
  {
    title: "KV hand-off",
    chart: new Chart(times("handoff"), seconds),
    value: ({ minute }) => seconds(minute.quantiles.handoff?.p95),
    unit: "p95",
    notes: ({ minute }) => [
      minute.quantiles.handoff ? `${count(minute.quantiles.handoff.num)} in the last minute` : "none in the last minute",
    ],
    hint: "From the end of the prompt on its prefill worker to the first token from the decode worker",
  },
];

export class Cards {
  constructor(parent) {
    this.cards = CARDS.map((card) => ({ card, ...build(parent, card) }));
  }

  update(state, points) {
    for (const { card, made, value, notes } of this.cards) {
      setText(value, card.value(state));
      setText(notes, card.notes(state).filter(Boolean).join(" · "));
      made.classList.toggle("bad", card.isBad?.(state) ?? false);
      card.chart.update(points, card.goal?.(state));
    }
  }
}

function build(parent, card) {
  const made = element("article", "card");
  const title = element("h2", "", card.title);
  if (card.hint) title.title = card.hint;
  const figure = element("p", "figure");
  const value = element("strong");
  const notes = element("span", "notes");
  figure.append(value, element("span", "unit", card.unit), notes);
  made.append(title, figure, card.chart.svg, card.chart.legend);
  parent.append(made);
  return { made, value, notes };
}
