// The policy: a text box with what is in force, differences before they are applied, history with roll-back;
// blocks of client networks.
"use strict";

// Which generation the text will replace, the text whose differences were shown, the text as it was loaded, and from which generation of the past; 0: from
// the one in force.
const editor = { base: null, checked: null, loaded: "", past: 0 };

const text = () => byId("policy-text");
/** Whether the reader has changed the text. */
const edited = () => text().value !== editor.loaded;

/** Fetches a generation's policy; 0: the one in force, none: an empty one. */
async function policyText(number) {
  try {
    return await ask(number ? `api/v1/policy/generations/${number}/policy` : "api/v1/policy");
  } catch (error) {
    if (error.status === 404 && !number) return { generation: 0, yaml: "apiVersion: csp/v1\nservices: []\n" };
    throw error;
  }
}

/** Puts a generation's policy into the text box if `replaces` says so once it is there; it will replace the one in force now. Resolves to whether it did. */
async function load(number, replaces) {
  if (!operates()) return false;
  const [view, active] = await Promise.all([policyText(number), policyText(0)]);
  if (!replaces()) return false;
  editor.base = active.generation;
  editor.loaded = view.yaml;
  editor.past = number === editor.base ? 0 : number;
  editor.checked = null;
  text().value = view.yaml;
  put("policy-diff");
  byId("policy-apply").disabled = true;
  byId("policy-base").textContent = editor.past
    ? `The policy of generation ${number}, to replace generation ${editor.base}.` : `The policy of generation ${editor.base}, which is in force.`;
  return true;
}

/** The same when the reader asks for it. A text that was changed is only replaced with the reader's consent. */
async function edit(number) {
  const before = text().value;
  const what = number ? `the policy of generation ${number}` : "the policy in force";
  if (edited() && !await question("Discard the changed text?", [`The policy in the text box was changed and not applied. It is replaced by ${what}.`], "Discard")) return false;
  return load(number, () => !edited() || text().value === before);
}

/** The same without being asked: a text that nobody has changed follows what is in force. */
async function keepUp(number) {
  const before = text().value;
  const own = () => edited() || editor.past !== 0 || text().value !== before;
  if (number === editor.base) return;
  if (editor.base === null || !own()) await load(0, () => !own());
  else if (number > editor.base) byId("policy-base").textContent = `This text is meant to replace generation ${editor.base}; generation ${number} is in force by now.`;
}

/** Keeps the text, to replace another generation, and shows how it differs from the policy in force. */
async function rebase(number) {
  put("result");
  editor.base = number;
  byId("policy-base").textContent = `This text is meant to replace generation ${number}.`;
  await check();
}

/** Differences as lines: their sign says what they are, a colour as well. */
function diffOf(view) {
  if (!view.diff) return empty("No differences: this is the policy in force.");
  const kinds = { "+": "good", "-": "bad", "@": "quiet" };
  const lines = view.diff.replace(/\n$/, "").split("\n");
  return h("pre", { class: "diff", tabindex: "0", role: "group", "aria-label": `Differences to generation ${view.generation}` },
    lines.map((line) => h("span", { class: kinds[line[0]] || null }, line + "\n")));
}

const changed = (view, sign) => (view.diff || "").split("\n").filter((line) => line.startsWith(sign) && !line.startsWith(sign.repeat(3))).length;

/** Has the text checked; nothing is changed. */
async function check() {
  const yaml = text().value;
  const response = await fetch("api/v1/policy?dry_run=true", { method: "POST", headers: { "content-type": "application/yaml" }, body: yaml, signal: AbortSignal.timeout(2 * TIMEOUT_MS) });
  const view = await response.json().catch(() => ({}));
  const stale = view.generation !== editor.base;
  editor.checked = response.ok ? { yaml, view } : null;
  byId("policy-apply").disabled = !response.ok || !view.diff || stale;
  if (!response.ok) {
    const errors = (view.errors || []).map((e) => h("li", {}, e.line ? `line ${e.line}: ` : "", h("code", {}, e.field), ` ${e.message}`, e.allowed ? `; allowed: ${e.allowed}` : ""));
    put("policy-diff", errors.length ? [mark("bad", "✕", "The policy is wrong. Nothing was changed."), h("ul", {}, errors)] : null);
    return errors.length ? null : refused({ what: "Show differences" }, response.status, view);
  }
  const moved = stale ? h("p", {}, mark("warn", "▲", `Generation ${view.generation} is in force by now; the text was meant to replace generation ${editor.base}. `),
    button("rebase", `Replace generation ${view.generation}`, { of: view.generation })) : null;
  put("policy-diff", h("p", { class: "small" }, `${several(changed(view, "+"), "line")} added, ${changed(view, "-")} removed against generation ${view.generation}`), moved, diffOf(view),
    view.warnings.map((one) => h("p", { class: "small" }, mark("warn", "▲", one))));
}

async function apply() {
  if (!editor.checked || editor.checked.yaml !== text().value) return check();
  const { yaml, view } = editor.checked;
  const change = { what: "Apply the policy", method: "POST", path: "policy", query: { file: "page" }, body: yaml, yaml: true, expected: editor.base };
  const words = [`It replaces generation ${editor.base}: ${several(changed(view, "+"), "line")} added, ${changed(view, "-")} removed. Every node checks it first.`];
  if (!await question(`Apply this policy in place of generation ${editor.base}?`, words, "Apply", diffOf(view))) return;
  // What was refused stays in the box, and so does what was typed meanwhile.
  if (await make(change)) await load(0, () => text().value === yaml);
}

async function rollback(number) {
  const change = { what: `Roll back to generation ${number}`, method: "POST", path: "policy/rollback", query: { generation: String(number) }, body: "{}", expected: generation() };
  const words = [`The policy of generation ${number} is published again, in place of generation ${change.expected}. It gets a new number.`];
  if (await question(`Roll back from generation ${change.expected} to ${number}?`, words, "Roll back")) await make(change);
}

async function refreshHistory() {
  const history = await ask("api/v1/policy/history");
  const kinds = { active: ["good", "●"], superseded: ["", "○"], staging: ["warn", "…"], activating: ["warn", "…"] };
  const row = (g) => {
    const [kind, sign] = kinds[g.phase] || ["bad", "✕"];
    const acts = operates() && g.phase === "superseded"
      ? [button("rollback", "Roll back", { of: g.generation }, `Roll back to generation ${g.generation}`), " ", button("edit", "Open", { of: g.generation }, `Open generation ${g.generation} in the text box`)] : "";
    return [String(g.generation), h("div", {}, mark(kind, sign, g.phase), g.reason ? h("div", { class: "small" }, g.reason) : null),
      span(Date.now() - g.created_unix_ms) + " ago", h("code", {}, g.hash.slice(0, 12)), ...(operates() ? [h("span", { class: "acts" }, acts)] : [])];
  };
  const heads = [["Generation", "nowrap"], ["State"], ["Written", "nowrap"], ["sha256"]];
  put("history", history.length ? table("Generations of the policy", operates() ? [...heads, ["Action", "nowrap"]] : heads, history.slice(0, 15).map(row)) : empty("No policy was applied yet."));
  const active = history.find((g) => g.phase === "active");
  if (operates()) await keepUp(active ? active.generation : 0);
}

/** What the block lists of the network nodes have: a network counts once, with the packets of all nodes. */
async function refreshBlocks() {
  const plugins = await ask("api/v1/plugins");
  const lists = [...new Set(plugins.nodes.flatMap((n) => n.instances.filter((i) => i.module === "block-list").map((i) => i.name)))];
  byId("blocks-section").hidden = !lists.length;
  if (!lists.length) return;
  const select = byId("block-list");
  if (lists.join() !== [...select.options].map((option) => option.value).join()) select.replaceChildren(...lists.map((name) => h("option", { value: name }, name)));
  const answers = await Promise.all(lists.map((name) => ask(`api/v1/plugins/${encodeURIComponent(name)}/list`)));
  const number = (row, name) => row.numbers.filter((n) => n.name === name).reduce((sum, n) => sum + n.value, 0);
  const rows = lists.flatMap((list, at) => {
    const blocks = new Map();
    for (const row of answers[at].nodes.flatMap((n) => n.rows)) {
      const sum = blocks.get(row.key) || { list, key: row.key, note: row.note, left: 0, hits: 0 };
      blocks.set(row.key, { ...sum, left: Math.max(sum.left, number(row, "seconds_left")), hits: sum.hits + number(row, "packets") });
    }
    return [...blocks.values()];
  });
  const row = (b) => [h("code", {}, b.key), b.list, b.left ? span(1000 * b.left) : "until unblocked", count(b.hits), b.note || "–",
    ...(operates() ? [button("unblock", "Unblock", { of: b.key, instance: b.list }, "Unblock " + b.key)] : [])];
  const heads = [["Network", "nowrap"], ["List", "nowrap"], ["Left", "nowrap"], ["Packets", "number"], ["From"]];
  put("blocks", rows.length ? table("Blocked networks", operates() ? [...heads, ["Action", "nowrap"]] : heads, rows.slice(0, 200).map(row)) : empty("Nothing is blocked."),
    rows.length > 200 ? h("p", { class: "small quiet" }, `${rows.length - 200} more: cspctl blocks list`) : null, answers.flatMap((a) => missing(a.refused)));
}

async function refreshAudit() {
  if (!operates()) return;
  const audit = await ask("api/v1/audit?limit=40");
  const row = (r) => {
    const fine = r.status < 400;
    return [new Date(r.time_ms).toLocaleString(), h("div", {}, h("code", {}, r.who), h("div", { class: "small quiet" }, `${r.by}, ${r.from}`)), r.what || `${r.method} ${r.path}`,
      String(r.generation), h("div", {}, mark(fine ? "good" : "bad", fine ? "✓" : "✕", String(r.status)), fine ? null : h("div", { class: "small" }, r.result))];
  };
  const done = audit.records.filter((r) => r.stage === "done").slice(0, 15);
  put("audit", done.length ? table("Changes that were asked for at " + audit.node, [["Time", "nowrap"], ["Who"], ["What"], ["Generation", "number"], ["Result"]], done.map(row))
    : empty("No change was asked for at this management node."));
}

byId("policy-load").addEventListener("click", () => edit(0));
byId("policy-check").addEventListener("click", () => check().catch((error) => say("bad", "✕", String(error))));
byId("policy-apply").addEventListener("click", () => apply().catch((error) => say("bad", "✕", String(error))));
text().addEventListener("input", () => { byId("policy-apply").disabled = true; });
byId("block-add").addEventListener("click", () => block(byId("block-list").value, byId("block-prefix").value.trim(), byId("block-time").value.trim()));

every(5000, refreshHistory);
every(3000, refreshBlocks);
every(5000, refreshAudit);
