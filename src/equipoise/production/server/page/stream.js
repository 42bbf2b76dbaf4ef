// The row of one stream: its numbers in words, and below them the curves when it is open.

import { Curves } from "./curves.js";
import { ago, clock, count, estimate, grave, held, plural, share, trigger } from "./words.js";

const MOST_ROWS = 2000;
const MOST_EVENTS = 200;
const LISTED_EVENTS = 8;
const MOST_BARS = 14;

const key = event => `${event.time} ${event.batch} ${event.action}`;

function element(tag, kind, text) {
  const made = document.createElement(tag);
  made.className = kind;
  made.textContent = text;
  return made;
}

export class Stream {
  #fields = {};
  #curves = null;
  #events = new Map();
  #rows = [];
  #status = null;
  #whole = false;

  constructor(open) {
    const { content } = document.getElementById("stream-template");
    this.item = content.cloneNode(true).firstElementChild;
    for (const found of this.item.querySelectorAll("[data-field]")) this.#fields[found.dataset.field] = found;
    this.details = this.item.querySelector("details");
    this.details.open = open;
  }

  get open() {
    return this.details.open;
  }

  // Whether the curves have all of a stream on disk, which stands still: reading it there takes the server's time.
  get whole() {
    return this.#whole;
  }

  // The index after which history is to be asked for.
  get since() {
    return this.#rows.at(-1)?.index ?? 0;
  }

  show(status) {
    if (status.batches < (this.#status?.batches ?? 0)) this.#forget();
    this.#status = status;
    if (status.resident) this.#whole = false;
    for (const event of status.events) this.#events.set(key(event), event);
    while (this.#events.size > MOST_EVENTS) this.#events.delete(this.#events.keys().next().value);
    const actions = this.#actions();
    this.#write("name", status.name);
    this.#write("mode", status.mode);
    this.#write("batches", count(status.batches));
    const [guard, ...evidence] = status.guard.split("\n");
    this.#write("guard", guard);
    this.#write("evidence", evidence.join("\n"));
    this.#write("event", actions.length ? `${actions.at(-1).action} at ${clock(actions.at(-1).time)}` : "none");
    this.#fields.mode.dataset.mode = status.mode;
    this.item.classList.toggle("troubled", status.mode === "hold" || held(actions));
    const remembered = status.resident || Object.keys(status.gauges).length > 0;
    this.#showEstimate(status.gauges, remembered);
    const { labels, labels_seen: seen, true_accuracy: right, answered_share: answered } = status.gauges;
    const { coverage, coverage_low: low, coverage_high: high } = status.gauges;
    this.#write("facts", [
      plural(status.samples, "sample"),
      ...(right == null ? [] : [`${share(right)} right by the last ${plural(labels, "label")} of ${count(seen ?? labels)}`]),
      ...(low == null ? [] : [`${share(coverage ?? 0.9)} of 90 % sets have the class (estimated, ${share(low)} to ${share(high)})`]),
      ...(answered == null ? [] : [`${share(answered)} can be acted upon with 95 % right`]),
      `last request ${ago(status.last_seen)}`,
      ...(remembered ? [`${plural(status.snapshots.length, "snapshot")} to go back to`] : []),
      status.resident ? "in memory" : "on disk until the next request",
    ].join(" · "));
    this.#showEvents(actions);
  }

  add(rows) {
    this.#whole = !this.#status.resident;
    this.#rows.push(...rows);
    if (this.#rows.length > MOST_ROWS) this.#rows.splice(0, this.#rows.length - MOST_ROWS);
    this.#curves ??= new Curves(name => this.#fields[name]);
    this.#curves.show(this.#rows, this.#actions());
    const last = this.#rows.at(-1);
    this.#showHistogram(last?.histogram ?? []);
    const outside = last?.inside === false;
    this.#fields.warning.hidden = !outside;
    if (outside) this.#write("warning", "The inputs are outside of the drifts that were rehearsed: the estimate is not to be trusted.");
  }

  redraw() {
    this.#curves?.redraw();
  }

  // A stream that starts again from nothing under the same name.
  #forget() {
    this.#rows = [];
    this.#whole = false;
    this.#events.clear();
  }

  // Snapshots are too many to be marked: the facts count them.
  #actions() {
    return [...this.#events.values()].filter(event => event.action !== "snapshot");
  }

  #write(field, text) {
    if (this.#fields[field].textContent !== text) this.#fields[field].textContent = text;
  }

  // Of the streams on disk the server remembers those that left memory last; of others it reads no estimate.
  #showEstimate({ accuracy, accuracy_low: low, accuracy_high: high }, remembered) {
    this.#write("accuracy", remembered ? estimate({ accuracy, low, high }) : "on disk");
    const { band, tick } = this.#fields;
    band.parentElement.classList.toggle("none", accuracy == null);
    band.setAttribute("x", 100 * (low ?? accuracy ?? 0));
    band.setAttribute("width", 100 * ((high ?? accuracy ?? 0) - (low ?? accuracy ?? 0)));
    tick.setAttribute("x", 100 * (accuracy ?? 0) - 0.6);
  }

  #showEvents(actions) {
    const shown = actions.slice(-LISTED_EVENTS).reverse();
    const list = this.#fields.events;
    this.#fields["no-events"].hidden = shown.length > 0;
    if (list.dataset.newest === String(shown.length && key(shown[0]))) return;
    list.dataset.newest = String(shown.length && key(shown[0]));
    list.replaceChildren(...shown.map(event => {
      const made = element("li", grave(event.action) ? "grave" : "", "");
      made.append(
        element("span", "action", event.action),
        element("span", "when", `${clock(event.time)}, batch ${count(event.batch)}, ${trigger(event)}`),
        element("span", "reason", event.reason === trigger(event) ? "" : event.reason),
      );
      return made;
    }));
  }

  #showHistogram(histogram) {
    const place = this.#fields.histogram;
    const classes = histogram.map((value, at) => ({ value, at })).sort((a, b) => b.value - a.value);
    const shown = classes.slice(0, MOST_BARS).sort((a, b) => a.at - b.at);
    const most = classes[0]?.value || 1;
    while (place.children.length > shown.length) place.lastElementChild.remove();
    while (place.children.length < shown.length) {
      const made = element("span", "column", "");
      made.append(element("span", "share", ""), element("span", "class", ""));
      place.append(made);
    }
    shown.forEach(({ value, at }, index) => {
      const [bar, label] = place.children[index].children;
      bar.style.height = `calc((100% - 20px) * ${value / most})`;
      bar.classList.toggle("most", at === classes[0].at);
      label.textContent = at;
      place.children[index].title = `class ${at}: ${share(value)}`;
    });
    const hidden = classes.slice(MOST_BARS).reduce((sum, { value }) => sum + value, 0);
    const rest = classes.length > MOST_BARS ? `; ${classes.length - MOST_BARS} classes not shown have ${share(hidden)}` : "";
    this.#write("histogram-readout", classes.length ? `largest: class ${classes[0].at}, ${share(most)}${rest}` : "no data yet");
    place.setAttribute("aria-label", shown.map(({ value, at }) => `class ${at} ${share(value)}`).join(", ") || "no data yet");
  }
}
