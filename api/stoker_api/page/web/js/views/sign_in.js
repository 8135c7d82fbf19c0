// Signing in: by a link that the command prints, or by pasting a token.
import { refused } from "../api.js";
import { Flame } from "../parts/flame.js";
import { Copy } from "../parts/same_as.js";
import { signIn, trouble } from "../session.js";
import { html, useState } from "../ui.js";

export function SignIn() {
  const [busy, setBusy] = useState(false);
  async function submit(event) {
    event.preventDefault();
    const given = new FormData(event.target).get("token");
    if (!given.trim()) return;
    setBusy(true);
    await signIn(given);
    setBusy(false);
  }
  const problem = trouble.value || refused.value;
  return html`<main class="sign-in" id="main">
    <h1><${Flame} />Stoker</h1>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    <section>
      <h2>With a link</h2>
      <p>This prints one that signs you in. It is good once, for a minute.</p>
      <div class="command"><code>stoker page</code><${Copy} text="stoker page" /></div>
    </section>
    <form onSubmit=${submit}>
      <h2>With a token</h2>
      <p>It stays in this tab until the tab is closed.</p>
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="off" spellcheck=${false} required />
      <button type="submit" class="main" disabled=${busy}>${busy ? "Signing in …" : "Sign in"}</button>
    </form>
  </main>`;
}
