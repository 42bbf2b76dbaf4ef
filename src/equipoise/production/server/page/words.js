// Numbers, times and events as text.

export const share = value => value == null ? "–" : `${(100 * value).toFixed(1)} %`;

export const count = value => value.toLocaleString("en");

export const clock = seconds => new Date(1000 * seconds).toLocaleTimeString("en-GB");

export function estimate({ accuracy, low, high }) {
  if (accuracy == null) return "none";
  return low == null || high == null
    ? share(accuracy)
    : `${share(accuracy)} (${(100 * low).toFixed(1)} to ${(100 * high).toFixed(1)})`;
}

export function ago(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 2) return "just now";
  if (passed < 120) return `${Math.round(passed)} s ago`;
  if (passed < 7200) return `${Math.round(passed / 60)} min ago`;
  return `${Math.round(passed / 3600)} h ago`;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// Actions that take learning away, against those that give it back or only note something.
export const grave = action => ["hold", "rollback", "reset"].includes(action);

export const trigger = ({ trigger }) => trigger === "request" ? "asked for" : trigger;

// Whether the last of these events keeps a stream from learning: a guard that goes back also holds, a person does not.
export function held(events) {
  const last = events.findLast(({ action, trigger }) =>
    ["hold", "release"].includes(action) || grave(action) && trigger !== "request");
  return last !== undefined && last.action !== "release";
}
