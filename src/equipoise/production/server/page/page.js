// Asks the server for its streams every second and keeps a row for each.

import { Stream } from "./stream.js";
import { clock, count, plural } from "./words.js";

const PAUSE = 1000;
const MOST_SHOWN = 50;
const OPEN_AT_FIRST = 3;
const TOKEN = "equipoise-token";

const at = id => document.getElementById(id);
const streams = new Map();
let lost = null;

class TokenNeeded extends Error {}
class Unknown extends Error {}
class Lost extends Error {}

async function ask(address) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(address, { headers, cache: "no-store", signal: AbortSignal.timeout(10_000) })
    .catch(() => { throw new Lost("the server does not answer"); });
  if (response.status === 401) throw new TokenNeeded();
  if (response.status === 404) throw new Unknown();
  if (!response.ok) throw new Lost(`the server answered ${response.status}`);
  return response.json().catch(() => { throw new Lost("the answer broke off"); });
}

function matches(status, wanted) {
  const text = `${status.name} ${status.mode} ${status.guard}`.toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every(word => text.includes(word));
}

function showRows(all) {
  const found = all.filter(status => matches(status, at("search").value.trim()));
  const shown = found.slice(0, MOST_SHOWN);
  const names = new Set(shown.map(status => status.name));
  for (const [name, stream] of streams) {
    if (names.has(name)) continue;
    stream.item.remove();
    streams.delete(name);
  }
  shown.forEach((status, place) => {
    if (!streams.has(status.name)) streams.set(status.name, new Stream(streams.size < OPEN_AT_FIRST));
    const stream = streams.get(status.name);
    stream.show(status);
    if (at("streams").children[place] !== stream.item) at("streams").insertBefore(stream.item, at("streams").children[place] ?? null);
  });
  at("empty").hidden = all.length > 0;
  at("find").hidden = all.length === 0;
  at("more").hidden = found.length === shown.length && found.length > 0 || all.length === 0;
  at("more").textContent = found.length
    ? `The first ${MOST_SHOWN} of ${count(found.length)} are shown: search for the others.`
    : "No stream matches.";
  const samples = all.reduce((sum, status) => sum + status.samples, 0);
  at("summary").hidden = all.length === 0;
  at("summary").textContent = `${plural(all.length, "stream")}, ${plural(samples, "sample")} since the start`;
}

async function showCurve(name, stream) {
  try {
    stream.add(await ask(`v1/streams/${encodeURIComponent(name)}/history?since=${stream.since}`));
  } catch (error) {
    if (!(error instanceof Unknown)) throw error; // removed since the list was made: the next list is without it
  }
}

function showCurves() {
  const open = [...streams].filter(([, stream]) => stream.open && !stream.whole);
  return Promise.all(open.map(([name, stream]) => showCurve(name, stream)));
}

function showConnection(problem) {
  if (problem) lost ??= Date.now() / 1000;
  else lost = null;
  at("connection").classList.toggle("lost", Boolean(problem));
  at("connection-words").textContent = problem ? "not connected" : `up to date, ${clock(Date.now() / 1000)}`;
  at("banner").hidden = !problem;
  const words = problem ? `No connection since ${clock(lost)} (${problem}). The numbers below are old. Trying again every second.` : "";
  if (at("banner").textContent !== words) at("banner").textContent = words;
}

function askForToken() {
  const refused = sessionStorage.getItem(TOKEN) !== null;
  at("connection-words").textContent = "a token is needed";
  at("token-title").textContent = refused ? "The token was refused" : "A token is needed";
  at("token-dialog").showModal();
  return new Promise(resolve => {
    at("token-form").onsubmit = event => {
      event.preventDefault();
      sessionStorage.setItem(TOKEN, at("token").value);
      at("token").value = "";
      at("token-dialog").close();
      resolve();
    };
  });
}

async function refresh() {
  try {
    showRows(await ask("v1/streams"));
    await showCurves();
    showConnection(null);
  } catch (error) {
    if (error instanceof TokenNeeded) await askForToken();
    else if (error instanceof Lost) showConnection(error.message);
    else reportError(error);
  }
}

async function watch() {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise(resolve => setTimeout(resolve, PAUSE));
  }
}

at("curl").textContent = `curl -X POST '${location.origin}/v1/predict?stream=camera-1' \\\n  -H 'Content-Type: image/png' --data-binary @image.png`;
at("token-dialog").addEventListener("cancel", event => event.preventDefault());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const stream of streams.values()) stream.redraw();
});
watch();
