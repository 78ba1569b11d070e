// What workers did lately, from the growth of their counters; each report of a worker is about a second old.

const SPAN_S = 10;
const COUNTERS = ["step_s", "num_prefill_tokens", "num_decode_tokens"];

export class WorkerRates {
  constructor() {
    this.reports = new Map(); // of each incarnation, oldest first
  }

  update(at, workers) {
    const living = new Set(workers.map((worker) => worker.incarnation));
    for (const incarnation of this.reports.keys()) if (!living.has(incarnation)) this.reports.delete(incarnation);
    for (const worker of workers) {
      const kept = this.reports.get(worker.incarnation) ?? [];
      if (kept.length && COUNTERS.some((name) => worker[name] < kept[kept.length - 1][name])) kept.length = 0;
      kept.push({ at, ...Object.fromEntries(COUNTERS.map((name) => [name, worker[name]])) });
      while (kept.length > 2 && at - kept[0].at > SPAN_S) kept.shift();
      this.reports.set(worker.incarnation, kept);
    }
  }

  /** Share of the time in which it computes, and tokens per second; null: not known yet. */
  of(incarnation) {
    const kept = this.reports.get(incarnation) ?? [];
    const [first, last] = [kept[0], kept[kept.length - 1]];
    const span = kept.length > 1 ? last.at - first.at : 0;
    if (span < 2) return null;
    const tokens = last.num_prefill_tokens + last.num_decode_tokens - first.num_prefill_tokens - first.num_decode_tokens;
    return { busy: Math.min(1, (last.step_s - first.step_s) / span), tokens: tokens / span };
  }
}
