// The page of a login link: exchanges the secret after # for a session's cookie, then shows the operations page.
"use strict";

const TIMEOUT_MS = 8000;
const say = (text) => { document.getElementById("status").textContent = text; };

(async function login() {
  const token = location.hash.slice(1);
  // The secret is for one use; it does not stay in the browser's history.
  history.replaceState(null, "", "/login");
  if (!token) return say("Run `cspctl login` and open the link that it prints.");
  try {
    const response = await fetch("/api/v1/login/redeem", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ token }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (response.status === 204) return location.replace("/");
    say((await response.json()).error);
  } catch (error) {
    say("The management node did not answer. Run `cspctl login` again.");
  }
})();
