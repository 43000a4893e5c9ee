// Forms: fields with labels and hints, and the server's own complaints at the field they name.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { ApiFailure } from "../api/client";
import { Icon } from "./icons";

export interface Problems {
  /** What the server said about a field, by the name of the field. */
  fields: Record<string, string>;
  /** What it said about none of them. */
  other: string | null;
}

export const NO_PROBLEMS: Problems = { fields: {}, other: null };

/**
 * Finds the field that a message of the server is about: it begins with the field's name. A name that
 * something else has is the first field, unless another one is named.
 */
export function assignProblem(failure: unknown, names: string[]): Problems {
  const said = failure instanceof Error ? failure.message : String(failure);
  // A person who fills in a form does not know the body, so its path is left out.
  const message = said.replace(/ at line \d+ column \d+$/, "");
  if (!(failure instanceof ApiFailure) || failure.status === 0) return { fields: {}, other: message };
  const plain = message.replace(/^the /, "");
  const sorted = [...names].sort((a, b) => b.length - a.length);
  const named = (text: string) => sorted.find((name) => {
    const next = text.startsWith(name) ? text.slice(name.length, name.length + 1) : null;
    return next !== null && !/[A-Za-z0-9_]/.test(next);
  });
  const first = named(plain);
  // `credentials: account_key is missing` is about a part that has a field of its own.
  const part = first === undefined ? undefined : named(plain.slice(first.length).replace(/^: /, ""));
  const found = part ?? first
    ?? (/environment variable name/.test(plain) ? names.find((name) => name === "env_vars" || name === "env") : undefined)
    ?? (failure.code === "conflict" && /already/.test(plain) ? names[0] : undefined)
    ?? sorted.find((name) => new RegExp(`\\b${name.replaceAll(".", "\\.")}\\b`).test(plain));
  return found === undefined ? { fields: {}, other: message } : { fields: { [found]: message }, other: null };
}

/** The state of a form that is sent to the server. */
export function useSubmit(names: string[], send: () => Promise<void>) {
  const [busy, setBusy] = useState(false);
  const [problems, setProblems] = useState<Problems>(NO_PROBLEMS);
  const submit = async (event?: Event) => {
    event?.preventDefault();
    if (busy) return;
    setBusy(true);
    setProblems(NO_PROBLEMS);
    const form = event?.target instanceof HTMLElement ? event.target : document;
    try {
      await send();
    } catch (failure) {
      const found = assignProblem(failure, names);
      setProblems(found);
      const first = Object.keys(found.fields)[0];
      // The field may be disabled or folded until the form is rendered again.
      if (first !== undefined) setTimeout(() => form.querySelector<HTMLElement>(`[data-field="${first}"]`)?.focus());
    }
    setBusy(false);
  };
  return { busy, problems, submit };
}

interface FieldProps {
  label: string;
  name: string;
  problems?: Problems | undefined;
  hint?: ComponentChildren;
}
interface TextProps extends FieldProps {
  value: string;
  onChange: (value: string) => void;
  type?: string;
  placeholder?: string;
  required?: boolean;
  mono?: boolean;
  autoComplete?: string;
  rows?: number;
  list?: string[] | undefined;
  disabled?: boolean;
  inputMode?: string;
}

export function TextField(props: TextProps) {
  const id = useId();
  const problem = props.problems?.fields[props.name];
  const described = [props.hint === undefined ? "" : `${id}-hint`, problem === undefined ? "" : `${id}-problem`];
  const shared = {
    id,
    "data-field": props.name,
    name: props.name,
    value: props.value,
    placeholder: props.placeholder,
    required: props.required,
    disabled: props.disabled,
    spellcheck: false,
    autoComplete: props.autoComplete ?? "off",
    "aria-invalid": problem === undefined ? undefined : ("true" as const),
    "aria-describedby": described.join(" ").trim() || undefined,
  };
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      {props.rows === undefined ? (
        <input
          {...shared}
          class={`input ${props.mono === true ? "mono" : ""}`}
          type={(props.type ?? "text") as "text"}
          inputMode={props.inputMode as "numeric" | undefined}
          list={props.list === undefined ? undefined : `${id}-list`}
          onInput={(event) => props.onChange(event.currentTarget.value)}
        />
      ) : (
        <textarea {...shared} class="textarea" rows={props.rows} onInput={(event) => props.onChange(event.currentTarget.value)} />
      )}
      {props.list !== undefined && (
        <datalist id={`${id}-list`}>{props.list.map((item) => <option key={item} value={item} />)}</datalist>
      )}
      {props.hint !== undefined && <span class="hint" id={`${id}-hint`}>{props.hint}</span>}
      {problem !== undefined && <span class="problem" id={`${id}-problem`} role="alert">{problem}</span>}
    </div>
  );
}

interface SelectProps extends FieldProps {
  value: string;
  onChange: (value: string) => void;
  options: (string | { value: string; text: string })[];
  disabled?: boolean;
}
export function SelectField(props: SelectProps) {
  const id = useId();
  const problem = props.problems?.fields[props.name];
  return (
    <div class="field">
      <label for={id}>{props.label}</label>
      <select
        id={id}
        class="select"
        data-field={props.name}
        name={props.name}
        value={props.value}
        disabled={props.disabled}
        aria-invalid={problem === undefined ? undefined : "true"}
        aria-describedby={problem === undefined ? undefined : `${id}-problem`}
        onChange={(event) => props.onChange(event.currentTarget.value)}
      >
        {props.options.map((option) => {
          const { value, text } = typeof option === "string" ? { value: option, text: option } : option;
          return <option key={value} value={value} selected={value === props.value}>{text}</option>;
        })}
      </select>
      {props.hint !== undefined && <span class="hint">{props.hint}</span>}
      {problem !== undefined && <span class="problem" id={`${id}-problem`} role="alert">{problem}</span>}
    </div>
  );
}

interface CheckProps {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  hint?: string;
  disabled?: boolean;
}
export function CheckField({ label, checked, onChange, hint, disabled }: CheckProps) {
  return (
    <label class="check">
      <input type="checkbox" checked={checked} disabled={disabled} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span>
        {label}
        {hint !== undefined && <span class="hint">{hint}</span>}
      </span>
    </label>
  );
}

interface FootProps {
  problems: Problems;
  busy: boolean;
  action: string;
  onCancel?: (() => void) | undefined;
}
export function FormFoot({ problems, busy, action, onCancel }: FootProps) {
  return (
    <div class="form-foot">
      {problems.other !== null && <span class="problem wrap" role="alert">{problems.other}</span>}
      {onCancel !== undefined && <button type="button" class="button" onClick={onCancel}>Cancel</button>}
      <button type="submit" class="button primary" disabled={busy}>{busy ? "Working…" : action}</button>
    </div>
  );
}

/**
 * A number as the API takes it. A text that is none is sent as it was typed, so that the server
 * refuses it by the name of its field; `NaN` would become null, which the API takes for absent.
 */
export function readNumber(text: string): number {
  const number = Number(text);
  return text.trim() === "" || Number.isNaN(number) ? (text as unknown as number) : number;
}

// ---- Environment variables.

export interface VariableRow {
  name: string;
  value: string;
  secret: boolean;
  /** A secret that is stored already: what stands for it, which keeps it when it is sent back. */
  stored: string | null;
}

export function toVariableRows(values: Record<string, string>, secrets: string[]): VariableRow[] {
  return Object.entries(values).map(([name, value]) => {
    const secret = secrets.includes(name);
    return { name, value: secret ? "" : value, secret, stored: secret ? value : null };
  });
}

/** The variables as the API takes them. */
export function fromVariableRows(rows: VariableRow[]): Record<string, string | { value: string; secret: boolean }> {
  const made: Record<string, string | { value: string; secret: boolean }> = {};
  for (const row of rows) {
    if (row.name === "") continue;
    if (row.stored !== null) made[row.name] = row.stored;
    else made[row.name] = row.secret ? { value: row.value, secret: true } : row.value;
  }
  return made;
}

interface VariablesProps {
  rows: VariableRow[];
  onChange: (rows: VariableRow[]) => void;
  secrets?: boolean;
  problem?: string | undefined;
  name?: string;
  label?: string;
}
export function VariablesField({ rows, onChange, secrets = true, problem, name = "env_vars", label = "Environment variables" }: VariablesProps) {
  const id = useId();
  const change = (at: number, part: Partial<VariableRow>) =>
    onChange(rows.map((row, index) => (index === at ? { ...row, ...part } : row)));
  // A message names the variable, or is about all of them.
  const named = rows.filter((row) => row.name !== "" && problem !== undefined && problem.includes(row.name));
  const complaintOf = (row: VariableRow) => (problem !== undefined && (named.length === 0 || named.includes(row))
    ? { "aria-invalid": "true" as const, "aria-describedby": `${id}-problem`, "data-field": name } : {});
  return (
    <fieldset class="variables">
      <legend class="field-label">{label}</legend>
      {rows.map((row, at) => (
        <div class="variable" key={at}>
          <input class="input mono" aria-label={`Name of variable ${at + 1}`} placeholder="NAME" value={row.name} {...complaintOf(row)}
            onInput={(event) => change(at, { name: event.currentTarget.value })} />
          <input class="input mono" aria-label={`Value of variable ${at + 1}`}
            placeholder={row.stored !== null ? "stored; type to replace" : "value"} value={row.value}
            type={(row.secret ? "password" : "text") as "text"} autoComplete="off"
            onInput={(event) => change(at, { value: event.currentTarget.value, stored: null })} />
          {secrets && (
            <label class="check small">
              <input type="checkbox" checked={row.secret} onChange={(event) => change(at, { secret: event.currentTarget.checked })} /> secret
            </label>
          )}
          <button type="button" class="button quiet icon small" aria-label={`Remove variable ${row.name || at + 1}`}
            onClick={() => onChange(rows.filter((_, index) => index !== at))}>
            <Icon name="close" />
          </button>
        </div>
      ))}
      <button type="button" class="button small" onClick={() => onChange([...rows, { name: "", value: "", secret: false, stored: null }])}>
        <Icon name="plus" /> Add variable
      </button>
      {problem !== undefined && <p class="problem" id={`${id}-problem`} role="alert">{problem}</p>}
    </fieldset>
  );
}
