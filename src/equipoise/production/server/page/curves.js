// The curves of one stream: estimated accuracy with its band, confidence, temperature, the marks of events.

import { clock, estimate, grave, share } from "./words.js";

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A clock that was set back must not make the horizontal axis go back.
function times(rows) {
  let latest = -Infinity;
  return rows.map(row => (latest = Math.max(latest, row.time)));
}

// The accuracies with a flag of the same value, and their neighbours, so that two parts of a curve meet.
function part(rows, inside) {
  return rows.map((row, at) => {
    const near = [rows[at - 1], row, rows[at + 1]].filter(Boolean);
    const belongs = inside ? row.inside !== false : near.some(each => each.inside === false);
    return belongs ? row.accuracy ?? null : null;
  });
}

const column = (rows, name) => rows.map(row => row[name] ?? null);

// At least a tenth high, in whole tenths, within 0 and 1.
function shareRange(chart, low, high) {
  if (low == null) return [0, 1];
  const bottom = Math.max(0, Math.floor(10 * low - 0.2) / 10);
  return [Math.min(bottom, 0.9), Math.min(1, Math.max(Math.ceil(10 * high + 0.2) / 10, bottom + 0.1))];
}

function temperatureRange(chart, low, high) {
  if (low == null) return [0, 2];
  const room = Math.max(0.1, 0.15 * (high - low));
  return [Math.max(0, low - room), high + room];
}

function timeRange(chart, low, high) {
  if (low == null) return [0, 10];
  return high - low < 10 ? [low, low + 10] : [low, high];
}

const line = (name, more = {}) => ({ stroke: () => colour(name), width: 2, points: { show: false }, ...more });

function axes(format) {
  const common = {
    stroke: () => colour("--muted"),
    font: "12px system-ui, sans-serif",
    grid: { stroke: () => colour("--grid"), width: 1 },
    ticks: { show: false },
  };
  return [
    { ...common, size: 28, space: 80, values: (chart, splits) => splits.map(clock), grid: { show: false } },
    { ...common, size: 44, space: 32, values: (chart, splits) => splits.map(format) },
  ];
}

// Draws an event as a vertical line, with the word of its action where there is room for it.
function drawMarks(chart, events, worded) {
  const { ctx, bbox } = chart;
  const scale = devicePixelRatio;
  let free = -Infinity;
  ctx.save();
  ctx.font = `600 ${11 * scale}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  ctx.textAlign = "left";
  ctx.lineWidth = 1.5 * scale;
  for (const { time, action } of events) {
    if (time < chart.scales.x.min || time > chart.scales.x.max) continue;
    const x = chart.valToPos(time, "x", true);
    ctx.strokeStyle = ctx.fillStyle = colour(grave(action) ? "--over" : "--muted");
    ctx.setLineDash(grave(action) ? [] : [3 * scale, 3 * scale]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(action).width;
    const fits = x + width + 5 * scale < bbox.left + bbox.width;
    const left = fits ? x + 4 * scale : x - width - 4 * scale;
    if (!worded || left < free) continue;
    ctx.fillText(action, left, bbox.top + 2 * scale);
    free = left + width + 6 * scale;
  }
  ctx.restore();
}

export class Curves {
  #rows = [];
  #marks = [];
  #charts;

  constructor(field) {
    const percent = value => `${Math.round(100 * value)} %`;
    this.#charts = [
      this.#chart(field("accuracy-plot"), field("accuracy-readout"), percent, {
        range: shareRange,
        worded: true,
        series: [
          line("--accent", { stroke: "transparent" }),
          line("--accent", { stroke: "transparent" }),
          line("--muted", { width: 1.5, dash: [2, 4] }),
          line("--accent", { width: 2.5 }),
          line("--over", { width: 2.5, dash: [7, 5] }),
        ],
        bands: [{ series: [1, 2], fill: () => colour("--band") }],
        columns: rows => [
          column(rows, "high"), column(rows, "low"), column(rows, "source_accuracy"),
          part(rows, true), part(rows, false),
        ],
        words: row => row.source_accuracy == null
          ? estimate(row) : `${estimate(row)}, source model ${share(row.source_accuracy)}`,
      }),
      this.#chart(field("confidence-plot"), field("confidence-readout"), percent, {
        range: shareRange,
        series: [line("--series-violet")],
        columns: rows => [column(rows, "confidence")],
        words: row => share(row.confidence),
      }),
      this.#chart(field("temperature-plot"), field("temperature-readout"), value => value.toFixed(2), {
        range: temperatureRange,
        series: [line("--series-pink")],
        columns: rows => [column(rows, "temperature")],
        words: row => row.temperature == null ? "–" : row.temperature.toFixed(2),
      }),
    ];
  }

  show(rows, marks) {
    this.#rows = rows;
    this.#marks = marks;
    for (const { chart, columns, read } of this.#charts) {
      chart.setData([times(rows), ...columns(rows)]);
      read();
    }
  }

  redraw() {
    for (const { chart } of this.#charts) chart.redraw(false, true);
  }

  #chart(place, readout, format, { range, series, bands = [], columns, words, worded = false }) {
    const read = () => {
      const at = chart.cursor.idx;
      const row = this.#rows[at ?? this.#rows.length - 1];
      readout.textContent = row ? (at == null ? words(row) : `${clock(row.time)}: ${words(row)}`) : "no data yet";
      place.setAttribute("aria-label", `Curve over time, now ${row ? words(row) : "without data"}`);
    };
    const chart = new uPlot({
      width: 300,
      height: 100,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: { x: { time: true, range: timeRange }, y: { range } },
      axes: axes(format),
      series: [{}, ...series],
      bands,
      padding: [8, 12, 0, 0],
      hooks: {
        draw: [made => drawMarks(made, this.#marks, worded)],
        setCursor: [() => read()],
      },
    }, [[], ...series.map(() => [])], place);
    new ResizeObserver(([{ contentRect: { width, height } }]) => {
      if (width && height) chart.setSize({ width, height });
    }).observe(place);
    return { chart, columns, read };
  }
}
