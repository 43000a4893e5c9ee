// What a person sets for themselves: password, second factor, sessions, colours.
import { useState } from "preact/hooks";
import { type Schemas, api, unwrap } from "../api/client";
import { isOperator, loadSession, session, signOut } from "../session";
import { theme, toggleTheme } from "../theme";
import { FormFoot, SelectField, TextField, useSubmit } from "../ui/form";
import { Time, Visible } from "../ui/format";
import { List } from "../ui/list";
import { CopyLine, Failed, Loading, PageHead, attempt, toast } from "../ui/parts";
import { useQuery } from "../ui/query";

export default function SettingsPage() {
  const me = session.value;
  return (
    <>
      <PageHead title="Settings" note={me?.name} />
      <div class="halves">
        {me?.has_password === true && <PasswordCard />}
        {me?.member_id !== null && me?.member_id !== undefined && <TotpCard enabled={me.totp} />}
        <section class="card" aria-label="Appearance"><header><h2>Appearance</h2></header>
          <div class="body row"><span class="grow">Colours are {theme.value}.</span><button type="button" class="button" onClick={toggleTheme}>Use {theme.value === "dark" ? "light" : "dark"} colours</button></div></section>
        {isOperator.value && <DefaultsCard />}
      </div>
      <SessionsList />
    </>
  );
}

function PasswordCard() {
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const { busy, problems, submit } = useSubmit(["current", "new"], async () => {
    await unwrap(api.POST("/console/api/password", { body: { current, new: next } }));
    setCurrent("");
    setNext("");
    toast("The password is changed. Your other sessions have ended.");
  });
  return (
    <section class="card" aria-label="Password"><header><h2>Password</h2></header>
      <form class="form body" onSubmit={submit}>
        <TextField label="Current password" name="current" type="password" required value={current} onChange={setCurrent} problems={problems} autoComplete="current-password" />
        <TextField label="New password" name="new" type="password" required value={next} onChange={setNext} problems={problems} autoComplete="new-password" hint="12 to 256 characters" />
        <FormFoot problems={problems} busy={busy} action="Change the password" />
      </form></section>
  );
}

function TotpCard({ enabled }: { enabled: boolean }) {
  const [offer, setOffer] = useState<Schemas["TotpRecord"] | null>(null);
  const [code, setCode] = useState("");
  const begin = () => attempt(async () => setOffer(await unwrap(api.POST("/console/api/totp"))));
  const { busy, problems, submit } = useSubmit(["code"], async () => {
    await unwrap(enabled ? api.POST("/console/api/totp/remove", { body: { code } }) : api.POST("/console/api/totp/confirm", { body: { code } }));
    setOffer(null);
    setCode("");
    await loadSession();
    toast(enabled ? "The second factor is off" : "The second factor is on");
  });
  return (
    <section class="card" aria-label="Second factor"><header><h2>Second factor</h2><span class={`badge ${enabled ? "good" : ""}`}>{enabled ? "on" : "off"}</span></header>
      <div class="body stack">
        {!enabled && offer === null && <><p class="muted">An authenticator app gives a code that you type when you sign in.</p><div><button type="button" class="button" onClick={begin}>Turn it on</button></div></>}
        {offer !== null && <><p>Add this key to your authenticator app, then type the code that it shows.</p><CopyLine text={offer.secret} label="Copy the key" /><CopyLine text={offer.uri} label="Copy the address" /></>}
        {(enabled || offer !== null) && (
          <form class="form" onSubmit={submit}>
            <TextField label="Code" name="code" required value={code} onChange={setCode} problems={problems} inputMode="numeric" autoComplete="one-time-code" />
            <FormFoot problems={problems} busy={busy} action={enabled ? "Turn it off" : "Turn it on"} />
          </form>
        )}
      </div></section>
  );
}

function DefaultsCard() {
  const defaults = useQuery(() => unwrap(api.GET("/v1/admin/defaults")), []);
  const save = (change: Schemas["UpdateDefaults"]) => attempt(async () => {
    await unwrap(api.PATCH("/v1/admin/defaults", { body: change }));
    defaults.reload();
  }, "Saved");
  const data = defaults.data;
  return (
    <section class="card" aria-label="Agents of all teams"><header><h2>Agents of all teams</h2></header>
      {defaults.error !== null && <Failed error={defaults.error} retry={defaults.reload} />}
      {data === undefined && defaults.error === null && <Loading lines={3} />}
      {data !== undefined && (
        <div class="body form-row">
          <SelectField label="May run code" name="agent_sandbox" value={String(data.agent_sandbox ?? "")} onChange={(value) => save({ agent_sandbox: value === "" ? null : value === "true" })}
            options={[{ value: "", text: "not set: off" }, { value: "true", text: "on" }, { value: "false", text: "off" }]} />
          {(["execute_code", "web_search", "fetch_url", "people_search"] as const).map((name) => (
            <SelectField key={name} label={name.replace("_", " ")} name={name} value={data[name] ?? ""} onChange={(value) => save({ [name]: value === "" ? null : value } as Schemas["UpdateDefaults"])}
              options={[{ value: "", text: name === "execute_code" ? "not set: ask" : "not set: deny" }, "allow", "ask", "deny"]} />
          ))}
        </div>
      )}</section>
  );
}

function SessionsList() {
  const list = useQuery(async () => (await unwrap(api.GET("/console/api/sessions"))).sessions, []);
  const revoke = (item: Schemas["SessionListItem"]) => attempt(async () => {
    if (item.current) {
      await signOut();
      return;
    }
    await unwrap(api.DELETE("/console/api/sessions/{id}", { params: { path: { id: item.id } } }));
    list.reload();
  }, "The session has ended");
  return (
    <>
      <h2>Sessions</h2>
      <List label="Sessions" query={list} keyOf={(item) => item.id}
        empty={{ icon: "settings", title: "There is no session", text: "Sign in to see it here." }}
        columns={[
          { title: "Who", primary: true, cell: (item) => <>{item.name} {item.current && <span class="badge good">this one</span>}</> },
          { title: "Role", cell: (item) => item.role },
          { title: "From", cell: (item) => <span class="mono">{item.address ?? "–"}</span> },
          { title: "Browser", cell: (item) => <span class="wrap muted small"><Visible text={item.user_agent} /></span> },
          { title: "Last seen", cell: (item) => <Time at={item.last_seen_at} form="ago" /> },
          { title: "Ends", cell: (item) => <Time at={item.expires_at} form="short" /> },
        ]}
        actions={(item) => <button type="button" class="button quiet small" aria-label={item.current ? "Sign out" : `End the session of ${item.name}`} onClick={() => revoke(item)}>{item.current ? "Sign out" : "End"}</button>} />
    </>
  );
}
