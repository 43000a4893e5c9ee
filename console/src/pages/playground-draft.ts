// What is in the playground, kept in this tab until it is closed.
import { readNumber } from "../ui/form";

export interface DraftFile {
  name: string;
  size: number;
  base64: string;
}

export interface Draft {
  code: string;
  language: string;
  sandbox: string;
  /** The id of a key; empty for the one of the console. */
  key: string;
  thread: string;
  stdin: string;
  timeout: string;
  variables: { name: string; value: string; secret: boolean; stored: string | null }[];
  metadata: { name: string; value: string; secret: boolean; stored: string | null }[];
  files: DraftFile[];
}

export const SAMPLES: Record<string, string> = {
  python: 'import sys\n\nfor step in range(3):\n    print(f"step {step}")\nprint(sys.version)\n',
  node: "for (let step = 0; step < 3; step++) {\n  console.log(`step ${step}`);\n}\nconsole.log(process.version);\n",
  bash: 'for step in 0 1 2; do\n  echo "step $step"\ndone\nuname -a\n',
  ruby: "3.times { |step| puts \"step #{step}\" }\nputs RUBY_VERSION\n",
  perl: 'print "step $_\\n" for 0..2;\nprint "$^V\\n";\n',
  php: '<?php\nfor ($step = 0; $step < 3; $step++) echo "step $step\\n";\necho PHP_VERSION, "\\n";\n',
  lua: 'for step = 0, 2 do print("step " .. step) end\nprint(_VERSION)\n',
  r: 'for (step in 0:2) cat("step", step, "\\n")\ncat(R.version.string, "\\n")\n',
  go: 'package main\n\nimport "fmt"\n\nfunc main() {\n\tfor step := 0; step < 3; step++ {\n\t\tfmt.Println("step", step)\n\t}\n}\n',
};

export const FIRST_DRAFT: Draft = {
  code: SAMPLES.python ?? "", language: "python", sandbox: "", key: "", thread: "", stdin: "", timeout: "",
  variables: [], metadata: [], files: [],
};

const KEY = "cloche.playground";

export function loadDraft(): Draft {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Partial<Draft> | null;
    return { ...FIRST_DRAFT, ...kept, files: [] };
  } catch {
    return FIRST_DRAFT;
  }
}

/** Keeps all but files, which may be large, and values of variables, which may be secret. */
export function saveDraft(draft: Draft): void {
  const kept = { ...draft, files: [], variables: draft.variables.map((row) => ({ ...row, value: "" })) };
  try {
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  } catch {
    // A program larger than the storage of the browser is not kept.
  }
}

/** The body of the request. */
export function bodyOf(draft: Draft) {
  const pairs = (rows: { name: string; value: string }[]) =>
    Object.fromEntries(rows.filter((row) => row.name !== "").map((row) => [row.name, row.value]));
  const variables = pairs(draft.variables);
  const metadata = pairs(draft.metadata);
  return {
    code: draft.code,
    language: draft.language,
    ...(draft.thread === "" ? {} : { thread_id: draft.thread }),
    ...(draft.stdin === "" ? {} : { stdin: draft.stdin }),
    ...(draft.timeout === "" ? {} : { timeout: readNumber(draft.timeout) }),
    ...(Object.keys(variables).length === 0 ? {} : { env_vars: variables }),
    ...(Object.keys(metadata).length === 0 ? {} : { metadata }),
    ...(draft.files.length === 0 ? {} : { files: draft.files.map((file) => ({ name: file.name, content_base64: file.base64 })) }),
  };
}
