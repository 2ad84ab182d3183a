// Formatting of numbers, sizes and times.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** Formats bytes with three digits and binary units, like the command line. */
export function bytes(count) {
  if (!Number.isFinite(count)) return "–";
  let unit = 0;
  let value = count;
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${value} B` : `${Number(value.toPrecision(3))} ${UNITS[unit]}`;
}

const WHOLE = new Intl.NumberFormat("en");

export function count(number) {
  return WHOLE.format(number);
}

/** Formats a count with its noun in singular or plural. */
export function things(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function percent(part) {
  if (part > 0 && part < 0.001) return "< 0.1 %";
  return `${(part * 100).toFixed(part < 0.1 && part > 0 ? 1 : 0)} %`;
}

/** Formats a number of a statistic. */
export function figure(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return "–";
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return number.toExponential(2);
  return String(Number(number.toPrecision(4)));
}

export function seconds(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

const AGO = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const STEPS = [
  ["second", 60],
  ["minute", 60],
  ["hour", 24],
  ["day", 30],
  ["month", 12],
  ["year", Infinity],
];

/** Formats a time relative to now. */
export function ago(text) {
  const time = Date.parse(text);
  if (Number.isNaN(time)) return "–";
  let distance = (time - Date.now()) / 1000;
  for (const [unit, many] of STEPS) {
    if (Math.abs(distance) < many) return AGO.format(Math.round(distance), unit);
    distance /= many;
  }
  return "–";
}

export function moment(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? "–" : time.toLocaleString();
}

/** Shortens a digest as `lode list` does. */
export function short(digest) {
  return digest.replace(/^sha256:/, "").slice(0, 12);
}
