// The sign-in page.
import { useState } from "preact/hooks";
import { ApiFailure, api, unwrap } from "./api/client";
import { place } from "./router";
import { SSO_FAILURES } from "./sign-on";
import { signIn, signOutReason } from "./session";
import { TextField, useSubmit } from "./ui/form";
import { Logo } from "./ui/icons";
import { Tabs } from "./ui/parts";
import { useQuery } from "./ui/query";

export function SignIn() {
  const [way, setWay] = useState<"password" | "token">("password");
  const options = useQuery(() => unwrap(api.GET("/console/api/sign-in")), []);
  const failure = place.value.query.get("sso");
  const said = failure === null ? signOutReason.value : SSO_FAILURES[failure] ?? SSO_FAILURES["internal"] ?? null;
  return (
    <main class="signin">
      <div class="signin-card">
        <div class="brand"><Logo /> Cloche</div>
        <h1 class="visually-hidden">Sign in to Cloche</h1>
        {said !== null && <div class="notice warn" role="status">{said}</div>}
        {options.data?.oidc !== null && options.data?.oidc !== undefined && (
          <a class="button primary wide" href={startOf(place.value)} target="_self">Sign in with {options.data.oidc.name}</a>
        )}
        <div class="card">
          <Tabs label="How to sign in" selected={way} onSelect={setWay}
            tabs={[{ id: "password", text: "Name and password" }, { id: "token", text: "Admin token" }]} />
          <div class="body pad-16">{way === "password" ? <PasswordForm /> : <TokenForm />}</div>
        </div>
      </div>
    </main>
  );
}

/** Where single sign-on begins; it comes back to the page that was asked for. */
function startOf({ path, query }: { path: string; query: URLSearchParams }): string {
  const rest = new URLSearchParams(query);
  rest.delete("sso");
  const search = rest.toString();
  const page = `/console${path}${search === "" ? "" : `?${search}`}`;
  return `/console/api/oidc/start?return_to=${encodeURIComponent(page)}`;
}

function TokenForm() {
  const [token, setToken] = useState("");
  const { busy, problems, submit } = useSubmit(["admin_token"], async () => {
    await explainFailure(signIn({ admin_token: token.trim() }));
  });
  return (
    <form class="form" onSubmit={submit}>
      <TextField label="Admin token" name="admin_token" type="password" mono required value={token} onChange={setToken}
        problems={problems} autoComplete="current-password"
        hint={<>It is in <code>bootstrap.json</code> of the data directory, and was printed at the first start.</>} />
      {problems.other !== null && <span class="problem" role="alert">{problems.other}</span>}
      <button type="submit" class="button primary" disabled={busy}>Sign in</button>
    </form>
  );
}

function PasswordForm() {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [code, setCode] = useState("");
  const [asksCode, setAsksCode] = useState(false);
  const { busy, problems, submit } = useSubmit(["name", "password", "code"], async () => {
    try {
      await explainFailure(signIn({ name, password, ...(code === "" ? {} : { code }) }));
    } catch (failure) {
      if (!(failure instanceof ApiFailure && failure.code === "code_required")) throw failure;
      setAsksCode(true);
    }
  });
  return (
    <form class="form" onSubmit={submit}>
      <TextField label="Name" name="name" required value={name} onChange={setName} problems={problems} autoComplete="username" />
      <TextField label="Password" name="password" type="password" required value={password} onChange={setPassword}
        problems={problems} autoComplete="current-password" />
      {asksCode && (
        <TextField label="Code from your authenticator" name="code" required value={code} onChange={setCode} problems={problems}
          autoComplete="one-time-code" inputMode="numeric" />
      )}
      {problems.other !== null && <span class="problem" role="alert">{problems.other}</span>}
      <button type="submit" class="button primary" disabled={busy}>Sign in</button>
    </form>
  );
}

/** Adds how long to wait, where the server says it. */
async function explainFailure(call: Promise<void>): Promise<void> {
  try {
    await call;
  } catch (failure) {
    if (failure instanceof ApiFailure && failure.status === 429 && failure.retryAfter !== null) {
      throw new ApiFailure(429, failure.code, `${failure.message} Try again in ${failure.retryAfter} s.`);
    }
    throw failure;
  }
}
