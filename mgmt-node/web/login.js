// The page of a login link: says whose link it is and asks, exchanges the secret after # for a session's cookie, then shows the
// operations page. A link may have come from another person; nothing begins before the reader has agreed.
"use strict";

const TIMEOUT_MS = 8000;
const part = (id) => document.getElementById(id);
const say = (text) => { part("status").textContent = text; };

const send = (path, body) => fetch(path, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
  signal: AbortSignal.timeout(TIMEOUT_MS),
});

const unanswered = () => say("The management node did not answer. Run `cspctl login` again.");

async function redeem(token, identity) {
  try {
    const response = await send("/api/v1/login/redeem", { token, identity });
    if (response.status === 204) return location.replace("/");
    say((await response.json()).error);
  } catch (error) {
    unanswered();
  }
}

async function login() {
  const token = location.hash.slice(1);
  // The secret is for one use; it does not stay in the browser's history.
  history.replaceState(null, "", "/login");
  if (!token) return say("Run `cspctl login` and open the link that it prints.");
  try {
    const response = await send("/api/v1/login/link", { token });
    const link = await response.json();
    if (!response.ok) return say(link.error);
    say("");
    part("identity").textContent = link.identity;
    part("role").textContent = link.role;
    part("question").hidden = part("agree").hidden = false;
    part("agree").addEventListener("click", () => {
      part("question").hidden = part("agree").hidden = true;
      say("Logging in …");
      redeem(token, link.identity);
    }, { once: true });
  } catch (error) {
    unanswered();
  }
}

// A link that is opened while this page is shown changes only what is behind #.
addEventListener("hashchange", login);
login();
