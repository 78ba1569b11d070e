// Lines over the last five minutes: time to the right, from zero up. All charts of a page show the same moment on hover.

import { element, setAttributes, setText, svgElement } from "./dom.js";
import { niceAbove, round } from "./format.js";

const SPAN_S = 300;
const HEIGHT = 96;
const TOP = 6;
const BOTTOM = 14; // for the times
const charts = new Set();

export class Chart {
  /** series: [{name, className, value: point => number or null}]; format: of a value. */
  constructor(series, format) {
    this.series = series;
    this.format = format;
    this.points = [];
    this.goal = null;
    this.svg = svgElement("svg", { class: "chart", role: "img", height: HEIGHT });
    this.legend = element("ul", "legend");
    this.grid = svgElement("g", { class: "grid" });
    this.labels = svgElement("g", { class: "labels" });
    this.goalLine = svgElement("line", { class: "goal" });
    this.area = svgElement("path", { class: `area ${series[0].className}` });
    this.cursor = svgElement("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM });
    this.lines = series.map((each) => svgElement("path", { class: `line ${each.className}` }));
    this.svg.append(this.grid, this.area, this.goalLine, ...[...this.lines].reverse(), this.cursor, this.labels);
    this.values = series.map((each) => this.addToLegend(each));
    this.svg.addEventListener("pointermove", (event) => showMoment(this.timeAt(event)));
    this.svg.addEventListener("pointerleave", () => showMoment(null));
    new ResizeObserver(() => this.draw()).observe(this.svg);
    charts.add(this);
  }

  addToLegend(each) {
    const item = element("li");
    const value = element("b");
    item.append(element("i", each.className), element("span", "", each.name), value);
    this.legend.append(item);
    return { item, value };
  }

  update(points, goal = null) {
    this.points = points;
    this.goal = goal;
    this.draw();
  }

  get width() {
    return this.svg.clientWidth;
  }

  get newestAt() {
    return this.points.length ? this.points[this.points.length - 1].at : 0;
  }

  timeAt(event) {
    const left = this.svg.getBoundingClientRect().left;
    return this.newestAt - SPAN_S * (1 - (event.clientX - left) / this.width);
  }

  x(at) {
    return this.width * (1 - (this.newestAt - at) / SPAN_S);
  }

  y(value) {
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value / this.top);
  }

  draw() {
    if (!this.width || !this.points.length) return;
    this.setTop();
    this.drawGrid();
    this.series.forEach((each, i) => {
      const runs = this.runs(each);
      setAttributes(this.lines[i], { d: runs.map((run) => this.path(run)).join("") });
      if (i === 0) setAttributes(this.area, { d: runs.map((run) => this.closed(run)).join("") });
    });
    this.showValues(moment);
  }

  /** The highest value fits, and so does the goal unless everything is far below it. */
  setTop() {
    const values = this.points.flatMap((point) => this.series.map((each) => each.value(point) ?? 0));
    const highest = Math.max(...values);
    const withGoal = this.goal != null && this.goal < 4 * highest ? Math.max(highest, this.goal * 1.05) : highest;
    this.top = niceAbove(withGoal || this.goal || 1);
    const y = this.goal != null && this.goal <= this.top ? this.y(this.goal) : null;
    setAttributes(this.goalLine, { x1: 0, x2: this.width, ...place("y", y) });
  }

  drawGrid() {
    setAttributes(this.svg, { viewBox: `0 0 ${this.width} ${HEIGHT}` });
    const lines = [0, 0.5, 1].map((share) => {
      const y = this.y(share * this.top);
      return svgElement("line", { x1: 0, x2: this.width, y1: y, y2: y });
    });
    const labels = [0.5, 1].map((share) =>
      this.label(2, this.y(share * this.top) + 10, round(this.format(share * this.top))),
    );
    const times = (this.width < 240 ? [120] : [240, 180, 120, 60]).map((age) => {
      const text = this.label(this.x(this.newestAt - age), HEIGHT - 2, `−${age / 60} min`);
      text.setAttribute("text-anchor", "middle");
      return text;
    });
    const now = this.label(this.width, HEIGHT - 2, "now");
    now.setAttribute("text-anchor", "end");
    this.grid.replaceChildren(...lines);
    this.labels.replaceChildren(...labels, ...times, now);
  }

  label(x, y, text) {
    const made = svgElement("text", { x, y });
    made.textContent = text;
    return made;
  }

  /** Points with a value that follow each other; where there is none, or the proxy missed seconds, the line breaks. */
  runs(each) {
    const runs = [];
    let run = null;
    let last = null;
    for (const point of this.points) {
      const value = each.value(point);
      if (value == null || this.newestAt - point.at > SPAN_S) {
        run = null;
        continue;
      }
      if (run === null || point.at - last > 5) runs.push((run = []));
      run.push([this.x(point.at), this.y(value)]);
      last = point.at;
    }
    return runs;
  }

  path(run) {
    const [[x, y], ...others] = run;
    const rest = others.length ? others.map(([a, b]) => `L${a.toFixed(1)} ${b.toFixed(1)}`).join("") : "h1.5";
    return `M${x.toFixed(1)} ${y.toFixed(1)}${rest}`;
  }

  closed(run) {
    const base = HEIGHT - BOTTOM;
    return `${this.path(run)}V${base}H${run[0][0].toFixed(1)}Z`;
  }

  /** at: null: the newest point's. */
  showValues(at) {
    const point = at === null ? this.points[this.points.length - 1] : this.nearest(at);
    this.series.forEach((each, i) => {
      const value = point ? each.value(point) : null;
      setText(this.values[i].value, this.format(value ?? null));
      this.values[i].item.hidden = Boolean(each.isOptional) && this.points.every((p) => each.value(p) == null);
    });
    setAttributes(this.cursor, place("x", at === null || !point ? null : this.x(point.at)));
    const told = this.series.map((each, i) => `${each.name} ${this.values[i].value.textContent}`);
    this.svg.setAttribute("aria-label", told.join(", "));
  }

  nearest(at) {
    return this.points.reduce((best, p) => (!best || Math.abs(p.at - at) < Math.abs(best.at - at) ? p : best), null);
  }
}

/** Of a straight line, both its ends there; null: nowhere. */
function place(axis, at) {
  return { [`${axis}1`]: at ?? 0, [`${axis}2`]: at ?? 0, visibility: at === null ? "hidden" : "visible" };
}

let moment = null; // that is pointed at; null: now

function showMoment(at) {
  moment = at;
  for (const chart of charts) chart.showValues(at);
}
