// Events as they come, by a long poll. A management node that has none answers with 404.
"use strict";

const EVENTS_MAX = 200;
const WAIT_S = 25;
const SEVERITIES = { info: ["", "·", 0], warning: ["warn", "▲", 1], error: ["bad", "✕", 2] };
const events = { list: [], cursor: null, missed: 0, day: null };

const severityOf = (e) => SEVERITIES[e.severity] || SEVERITIES.info;

const dayOf = (time) => time.toDateString();

/** When an event happened: with its date unless that is today. Nodes' clocks may be wrong beyond what a date can be. */
function timeOf(time_ms) {
  const time = new Date(time_ms);
  if (Number.isNaN(time.valueOf())) return h("time", {}, "unknown time");
  return h("time", { datetime: time.toISOString() }, dayOf(time) === events.day ? time.toLocaleTimeString() : time.toLocaleString());
}

function drawEvents() {
  events.day = dayOf(new Date());
  const least = Number(byId("events-severity").value);
  const find = byId("events-find").value.trim().toLowerCase();
  const fits = (e) => severityOf(e)[2] >= least && (!find || `${e.object} ${e.kind} ${e.text}`.toLowerCase().includes(find));
  const shown = events.list.filter(fits);
  const item = (e) => {
    const [kind, sign] = severityOf(e);
    return h("li", {}, timeOf(e.time_ms),
      mark(kind, sign, e.severity), h("span", { class: "event" }, h("code", {}, e.object), " " + e.text, h("span", { class: "quiet small" }, ` ${e.kind} at ${e.origin}`)));
  };
  put("events", shown.length ? h("ol", { class: "events" }, shown.map(item)) : empty(events.list.length ? "No event fits." : "No event yet."),
    events.missed ? h("p", { class: "small mark warn" }, `▲ ${events.missed} events were missed: the page asked too late for them`) : null);
}

/** Says the newest event that needs attention to those who listen. */
function announce(fresh) {
  const worst = fresh.filter((e) => severityOf(e)[2] > 0);
  if (worst.length) byId("events-said").textContent = worst.slice(0, 3).map((e) => `${e.severity}: ${e.object} ${e.text}`).join(". ");
}

async function followEvents() {
  const since = events.cursor === null ? "limit=100" : `limit=500&wait_s=${WAIT_S}&since=${encodeURIComponent(events.cursor)}`;
  let view;
  try {
    view = await ask("api/v1/events?" + since, 1000 * (WAIT_S + 10));
  } catch (error) {
    byId("events-section").hidden = error.status === 404;
    throw error;
  }
  byId("events-section").hidden = false;
  const fresh = [...view.events].sort((a, b) => b.time_ms - a.time_ms);
  if (events.cursor !== null) announce(fresh);
  events.cursor = view.cursor;
  events.missed += view.missed || 0;
  events.list = [...fresh, ...events.list].slice(0, EVENTS_MAX);
  if (fresh.length || !byId("events").hasChildNodes() || events.day !== dayOf(new Date())) drawEvents();
}

for (const id of ["events-severity", "events-find"]) byId(id).addEventListener("input", drawEvents);
// The wait is in the request. A node without events is asked again half a minute later.
(async function loop() {
  for (;;) {
    let pause = 200;
    try {
      if (document.hidden) pause = 2000;
      else await followEvents();
    } catch (error) {
      pause = error.status === 404 ? 30000 : 3000;
    }
    await new Promise((resume) => setTimeout(resume, pause));
  }
})();
