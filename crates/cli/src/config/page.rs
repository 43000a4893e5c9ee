//! Prints the settings: the reference in Markdown, and a sample file.

use std::fmt::Write;

use serde_json::Value;

use super::reference::{
    ArgumentEntry, SECRET_VARIABLES, STANDARD_VARIABLES, SettingDefault, SettingEntry,
    argument_entries, executor_entries, section_of,
};

/// The text before the tables of the reference.
const INTRODUCTION: &str = "\
# Configuration

`cloche config reference` prints this page, and `make check` compares the two. `cloche serve
--config FILE` (or `CLOCHE_CONFIG`) reads a TOML file. Flags override environment variables, which
override the file, which overrides the defaults. Unknown keys are errors.

```
cloche config check cloche.toml             # checks a file, and starts nothing
cloche config show --config cloche.toml     # the effective values, and where each comes from
cloche config sample >cloche.toml           # a file with every setting, commented out
```

Sizes are numbers of bytes with `K`, `M`, `G` or `T`, as in `\"512M\"`. The file has no secrets:
keys are named by the environment variable that holds them. Providers of models are described in
[the Agent API](AGENT.md), memory budgets and timeouts in [Security](SECURITY.md).
";

/// The reference of all settings.
pub(super) fn reference_page(entries: &[SettingEntry]) -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut section = None;
    for entry in entries {
        let own = section_of(&entry.key);
        if section != Some(own) {
            let title =
                if own.is_empty() { "Without a section".to_owned() } else { format!("`[{own}]`") };
            let _ = write!(
                page,
                "\n## {title}\n\n| key | meaning | default | flag | variable |\n|---|---|---|---|---|\n"
            );
            section = Some(own);
        }
        let name = entry.key.rsplit('.').next().unwrap_or_default();
        let default = markdown_default(&entry.default);
        let (flag, variable) = markdown_argument(entry.argument.as_ref());
        let _ =
            writeln!(page, "| `{name}` | {} | {default} | {flag} | {variable} |", entry.meaning);
    }
    page.push_str("\n## Flags without a key\n\n| flag | variable | meaning |\n|---|---|---|\n");
    let in_file = |argument: &ArgumentEntry| {
        entries.iter().filter_map(|entry| entry.argument.as_ref()).any(|it| it.id == argument.id)
    };
    for argument in argument_entries().iter().filter(|argument| !in_file(argument)) {
        let (flag, variable) = markdown_argument(Some(argument));
        let _ = writeln!(page, "| {flag} | {variable} | {}. |", argument.meaning);
    }
    page.push_str("\n## `cloche executor`\n\nA sidecar has no file.\n\n| flag | variable | meaning |\n|---|---|---|\n");
    for argument in executor_entries() {
        let (flag, variable) = markdown_argument(Some(&argument));
        let _ = writeln!(page, "| {flag} | {variable} | {}. |", argument.meaning);
    }
    page.push_str("\n## Standard variables\n\n| variable | meaning |\n|---|---|\n");
    for (variable, meaning) in STANDARD_VARIABLES {
        let _ = writeln!(page, "| `{variable}` | {meaning} |");
    }
    page.push_str("\n## Secrets\n\nThese variables have neither a key nor a flag, because files and lists of processes are read by\nothers.\n\n| variable | meaning |\n|---|---|\n");
    for (variable, meaning) in SECRET_VARIABLES {
        let _ = writeln!(page, "| `{variable}` | {meaning} |");
    }
    page
}

fn markdown_default(default: &SettingDefault) -> String {
    match default {
        SettingDefault::Words(words) => words.clone(),
        SettingDefault::Literal(value) => format!("`{}`", toml_value(value)),
    }
}

fn markdown_argument(argument: Option<&ArgumentEntry>) -> (String, String) {
    let Some(argument) = argument else { return (String::new(), String::new()) };
    let variable = argument.variable.as_ref().map(|name| format!("`{name}`")).unwrap_or_default();
    (format!("`{}`", argument.flag), variable)
}

/// A file with every setting, commented out.
pub(super) fn sample_file(entries: &[SettingEntry]) -> String {
    let mut file =
        "# Settings of `cloche serve`. Each is commented out and shows its default.\n".to_owned();
    let mut section = None;
    for entry in entries {
        let own = section_of(&entry.key);
        if section != Some(own) {
            if !own.is_empty() {
                let _ = write!(file, "\n# [{own}]\n");
            }
            section = Some(own);
        }
        for line in wrapped_lines(&entry.meaning) {
            let _ = write!(file, "\n## {line}");
        }
        let name = entry.key.rsplit('.').next().unwrap_or_default();
        let _ = match &entry.default {
            SettingDefault::Literal(value) => write!(file, "\n# {name} = {}\n", toml_value(value)),
            SettingDefault::Words(words) => write!(file, "\n# {name} =   # default: {words}\n"),
        };
    }
    file
}

/// A file in which every setting with a literal default has that value.
#[cfg(test)]
pub(super) fn defaults_file(entries: &[SettingEntry]) -> String {
    let mut file = String::new();
    let mut section = None;
    for entry in entries.iter().filter(|entry| !entry.key.contains("NAME")) {
        let SettingDefault::Literal(value) = &entry.default else { continue };
        let own = section_of(&entry.key);
        let required = SettingDefault::Words("required".to_owned());
        let is_optional = |it: &SettingEntry| section_of(&it.key) != own || it.default != required;
        if !entries.iter().all(is_optional) {
            continue;
        }
        if section != Some(own) {
            if !own.is_empty() {
                let _ = writeln!(file, "[{own}]");
            }
            section = Some(own);
        }
        let name = entry.key.rsplit('.').next().unwrap_or_default();
        let _ = writeln!(file, "{name} = {}", toml_value(value));
    }
    file
}

fn toml_value(value: &Value) -> String {
    // Values here are booleans, numbers, strings and lists of them, which TOML writes as JSON does.
    value.to_string()
}

fn wrapped_lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.len());
        if last > 0 && last + word.len() > 90 {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
