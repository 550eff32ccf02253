// What operators do on the page: each change asks a question that names the object and the generation, is sent once
// (Idempotency-Key), for the generation that the reader saw (if_generation), and says what has become of it.
"use strict";

const FOLLOW_S = 10;

/** Who the reader is; the page offers changes to operators only. */
async function refreshSession() {
  page.session = await ask("api/v1/session");
  const { identity, role, by } = page.session;
  const name = identity ? identity.split("/").pop() : "local";
  put("session", h("span", { title: identity || null }, `${name}, ${role}`), by === "session" ? button("logout", "Log out", {}) : null);
  for (const part of document.querySelectorAll("[data-operators]")) part.hidden = !operates();
}

// A role can be taken away, and a session can end.
every(60000, refreshSession);

const generation = () => (page.view && page.view.active ? page.view.active.generation : 0);

// crypto.randomUUID is for secure origins only; a random number is not.
function freshKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((octet) => octet.toString(16).padStart(2, "0")).join("");
}

/** Asks, and resolves to whether the reader agrees. Escape and Cancel disagree. */
function question(title, text, agree, more) {
  const dialog = byId("question");
  byId("question-title").textContent = title;
  byId("question-text").replaceChildren(...[text].flat().map((line) => h("p", {}, line)), ...(more ? [more] : []));
  byId("question-agree").textContent = agree;
  return new Promise((resolve) => {
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "agree"), { once: true });
    dialog.showModal();
    byId("question-cancel").focus();
  });
}

byId("question-agree").addEventListener("click", () => byId("question").close("agree"));
byId("question-cancel").addEventListener("click", () => byId("question").close(""));

/** Shows what has become of a change. */
function say(kind, sign, text, ...more) {
  put("result", h("div", { class: "banner " + kind }, h("p", {}, h("span", { "aria-hidden": "true" }, sign + " "), text), more, button("hush", "Close", {}, "Close this message")));
}

async function send(change, key) {
  const query = new URLSearchParams({ ...change.query, if_generation: String(change.expected) });
  const headers = { "idempotency-key": key };
  if (change.body !== undefined) headers["content-type"] = change.yaml ? "application/yaml" : "application/json";
  const options = { method: change.method, headers, body: change.body, cache: "no-store", signal: AbortSignal.timeout(4 * TIMEOUT_MS) };
  return fetch(`api/v1/${change.path}?${query}`, options);
}

/** Makes a change after the reader has agreed; resolves to whether it was made. `change`: what (text), method, path, query, body, yaml, expected. */
async function make(change) {
  const key = freshKey();
  say("warn", "…", `${change.what} …`);
  let response;
  try {
    // The key makes the second attempt harmless if only the answer was lost.
    response = await send(change, key).catch(() => send(change, key));
  } catch (error) {
    say("bad", "✕", `${change.what}: the management node did not answer. Whether it was done shows below.`);
    return false;
  }
  const body = response.status === 204 ? {} : await response.json().catch(() => ({ error: "status " + response.status }));
  if (!response.ok) {
    refused(change, response.status, body);
    return false;
  }
  if (response.status === 202) return follow(change, body);
  const failed = (body.refused || []).map((one) => `${one.node}: ${one.error}`);
  if (failed.length) say("bad", "✕", `${change.what}: not done at every node.`, failed.map((line) => h("p", { class: "small" }, line)));
  else if (body.phase) say("good", "✓", `${change.what}: this very policy is in force already.`);
  else say("good", "✓", `${change.what}: done.`);
  refresh();
  return !failed.length;
}

/** Says why a change was refused, and what the reader can do. */
function refused(change, status, body) {
  const text = `${change.what}: ${body.error || "status " + status}`;
  if (status === 403) refreshSession().catch(() => null);
  if (body.code === "changed") {
    const offers = change.yaml
      ? [button("rebase", "Keep my text", { of: body.generation }, `Keep my text, and compare it with generation ${body.generation}`), button("discard", "Discard my text", {}, "Discard my text, and load what is in force")]
      : button("reload", "Reload", {}, "Reload what is in force");
    return say("warn", "▲", `Conflict. ${change.what} was asked for generation ${change.expected}, and generation ${body.generation} is in force by now. Nothing was changed.`, offers);
  }
  if (body.code === "fresh-login") {
    return say("warn", "▲", `${change.what} needs a login of the last ten minutes. Log in again, then repeat it: `, h("code", {}, "cspctl login --role operator"));
  }
  if (body.code === "not-leader" && body.leader) {
    return say("warn", "▲", `Management node ${body.leader.id} leads, and takes changes: log in there. `, h("code", {}, `cspctl --server ${body.leader.url} login --role operator`));
  }
  if (status === 412) return say("warn", "▲", text, button("force", "Drain anyway", { of: change.of }, "Drain " + change.of + " anyway"));
  const errors = (body.errors || []).map((e) => h("li", {}, e.line ? `line ${e.line}: ` : "", h("code", {}, e.field), ` ${e.message}`, e.allowed ? `; allowed: ${e.allowed}` : ""));
  return say("bad", "✕", text, errors.length ? h("ul", {}, errors) : null);
}

/** Follows a publication until nothing further happens to it, or for a minute. Resolves to whether it was made. */
async function follow(change, view) {
  const ends = Date.now() + 60000;
  const pending = () => ["staging", "activating"].includes(view.phase);
  while (pending() && Date.now() < ends) {
    say("warn", "…", `${change.what}: generation ${view.generation}, ${view.phase}`, view.acks.length ? chips(view) : null);
    try {
      view = await ask(`api/v1/policy/generations/${view.generation}?wait_s=${FOLLOW_S}&since=${view.revision}`, 1000 * FOLLOW_S + TIMEOUT_MS);
    } catch (error) {
      if ([401, 403, 404].includes(error.status)) break;
      // The leader may restart.
      await new Promise((resume) => setTimeout(resume, 2000));
    }
  }
  const [made, ...said] = outcome(change, view, pending());
  say(...said);
  refresh();
  await refreshHistory().catch(() => null);
  return made;
}

/** What has become of a publication: whether it was made, and how to say so. */
function outcome(change, view, pending) {
  const what = `${change.what}: generation ${view.generation}`;
  const why = view.reason ? h("p", { class: "small" }, view.reason) : null;
  if (pending) return [false, "warn", "▲", `${what} was ${view.phase} when the management node last answered. It is not known what has become of it: see the history of the policy.`];
  if (view.phase === "active") return [true, "good", "✓", `${what} is active.`, why];
  if (view.phase === "superseded") return [true, "warn", "▲", `${what} was active, and a later one is in force by now.`, why];
  return [false, "bad", "✕", `${what} is ${view.phase}; the one before stays in force.`, why];
}

const inForce = () => (generation() ? `Generation ${generation()} is in force.` : "No policy is in force.");

async function drain(id, force) {
  const text = [`${id} gets no new connections, and gives its VIP groups to others. Open connections go on.`, inForce()];
  if (force) text.unshift(`${id} is the last proxy node in service: clients cannot connect while it drains.`);
  const change = { what: `Drain ${id}`, method: "PUT", path: `nodes/${encodeURIComponent(id)}/drain`, query: force ? { force: "true" } : {}, expected: generation(), of: id };
  if (await question(`Drain ${id}?`, text, force ? "Drain anyway" : "Drain")) await make(change);
}

async function resume(id) {
  const change = { what: `Resume ${id}`, method: "DELETE", path: `nodes/${encodeURIComponent(id)}/drain`, query: {}, expected: generation() };
  if (await question(`Resume ${id}?`, [`${id} gets new connections again.`, inForce()], "Resume")) await make(change);
}

async function block(instance, prefix, time) {
  const operation = { instance, operation: "add", arguments: time ? { prefix, time } : { prefix } };
  const text = [`Packets of ${prefix} are dropped by ${instance} at every network node${time ? ` for ${time}` : ", until it is unblocked"}.`, inForce()];
  if (await question(`Block ${prefix}?`, text, "Block")) await operate(`Block ${prefix}`, operation);
}

async function unblock(instance, prefix) {
  const text = [`${instance} lets packets of ${prefix} pass again, at every network node.`, inForce()];
  if (await question(`Unblock ${prefix}?`, text, "Unblock")) await operate(`Unblock ${prefix}`, { instance, operation: "remove", arguments: { prefix } });
}

async function operate(what, { instance, operation, arguments: given }) {
  await make({ what, method: "POST", path: `plugins/${encodeURIComponent(instance)}/${operation}`, query: {}, body: JSON.stringify({ arguments: given }), expected: generation() });
  await refreshBlocks();
}

async function switchScheme(scheme, before) {
  const change = { what: `Scheme ${scheme}`, method: "PUT", path: "link/scheme", query: {}, body: JSON.stringify({ scheme }), expected: generation() };
  const text = [`Proxies share the output link by ${scheme} instead of ${before}.`, `This changes generation ${change.expected}, and makes a new one.`];
  if (await question(`Switch the link's scheme to ${scheme}?`, text, "Switch")) await make(change);
}

async function logout() {
  if (edited() && !await question("Log out?", ["The policy in the text box was changed and not applied; it is lost."], "Log out")) return;
  const response = await fetch("api/v1/login", { method: "DELETE", signal: AbortSignal.timeout(TIMEOUT_MS) }).catch(() => null);
  if (response && response.ok) return location.replace("/login");
  say("bad", "✕", `Not logged out: ${response ? "status " + response.status : "the management node did not answer"}. The session may be open still.`);
}

const ACTS = {
  open: (data) => {
    if (!page.opened.delete(data.of)) page.opened.add(data.of);
    if (page.view) draw(page.view);
    refreshSeries().catch(() => null);
    refreshTopology().catch(() => null);
  },
  page: async (data) => { page.offset = Math.max(0, page.offset + Number(data.by)); await refresh(); await refreshSeries(); },
  peers: (data) => showPeers(data.of === chosen ? null : data.of),
  drain: (data) => drain(data.of, false),
  force: (data) => drain(data.of, true),
  resume: (data) => resume(data.of),
  unblock: (data) => unblock(data.instance, data.of),
  rollback: (data) => rollback(Number(data.of)),
  edit: (data) => edit(Number(data.of)),
  rebase: (data) => rebase(Number(data.of)),
  discard: async () => { if (await edit(0)) put("result"); },
  reload: async () => { put("result"); await refresh(); await refreshHistory().catch(() => null); },
  hush: () => put("result"),
  logout,
};

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-act]");
  if (pressed) Promise.resolve(ACTS[pressed.dataset.act](pressed.dataset)).catch((error) => say("bad", "✕", String(error)));
});

byId("find").addEventListener("input", () => {
  page.find = byId("find").value.trim();
  page.offset = 0;
  refresh();
});
