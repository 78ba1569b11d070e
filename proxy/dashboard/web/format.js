// Numbers as people read them: base units in, a value with its unit out. What is not there is a dash.

const NONE = "–";
const SPACE = "\u202f"; // narrow, and no line ends there

function digits(value) {
  if (value === 0) return "0";
  if (value >= 100) return Math.round(value).toString();
  return value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** 0.0123 → 12.3 ms */
export function seconds(value) {
  if (value == null) return NONE;
  if (value === 0) return `0${SPACE}ms`;
  if (value < 0.001) return `${digits(value * 1e6)}${SPACE}µs`;
  if (value < 0.9995) return `${digits(value * 1e3)}${SPACE}ms`;
  if (value < 60) return `${digits(value)}${SPACE}s`;
  const minutes = Math.floor(value / 60);
  return minutes < 60
    ? together([minutes, "min"], [Math.floor(value % 60), "s"])
    : together([Math.floor(minutes / 60), "h"], [minutes % 60, "min"]);
}

/** The second one only where it is not 0. */
function together(...parts) {
  return parts.filter(([number], i) => i === 0 || number).map((part) => part.join(SPACE)).join(" ");
}

/** 12345 → 12.3 k */
export function count(value) {
  if (value == null) return NONE;
  if (value < 10_000) return Number.isInteger(value) ? value.toString() : digits(value);
  return value < 1e6 ? `${digits(value / 1e3)}${SPACE}k` : `${digits(value / 1e6)}${SPACE}M`;
}

/** 4.2 → 4.20/s */
export function perSecond(value, unit = "") {
  return value == null ? NONE : `${count(value)}${unit && SPACE}${unit}/s`;
}

/** 0.123 → 12 % */
export function percent(value) {
  return value == null ? NONE : `${Math.round(value * 100)}${SPACE}%`;
}

/** 0.987 → 98.7 %; only all of them are 100 %. */
export function share(value) {
  if (value == null || value <= 0.9 || value >= 1) return percent(value);
  return `${Math.min(99.9, value * 100).toFixed(1)}${SPACE}%`;
}

/** Without zeros after the point, for what was chosen to be a round number: 1.00 s → 1 s */
export function round(text) {
  return text.replace(/\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)/, "$1");
}

/** How long ago, coarsely. */
export function ago(value) {
  return value < 1 ? "now" : `${seconds(Math.floor(value)).replace(/\.\d+/, "")} ago`;
}

/** The least of 1, 2, 2.5, 5, 10 … that is not below. */
export function niceAbove(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}
