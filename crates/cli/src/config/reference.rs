//! Every setting of `cloche serve`: its key, meaning and default from the schema of the settings
//! structs, its flag and variable from the command line.

use clap::{Args, Command};
use serde_json::Value;

use crate::{
    executor::ExecutorArguments,
    serve::{ServeArguments, settings_schema},
};

/// One setting of the file.
#[derive(Clone, Debug)]
pub(super) struct SettingEntry {
    /// Its key, e.g. `pool.floor`; a name that the operator chooses is `NAME`.
    pub(super) key: String,
    /// What it means.
    pub(super) meaning: String,
    /// The value that it has when it is not set.
    pub(super) default: SettingDefault,
    /// The argument of `cloche serve` for the same setting.
    pub(super) argument: Option<ArgumentEntry>,
}

/// The value of a setting that is not set.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum SettingDefault {
    /// This value.
    Literal(Value),
    /// A value that depends on the host or on other settings, in words.
    Words(String),
}

/// A flag of `cloche serve`, and its variable.
#[derive(Clone, Debug)]
pub(super) struct ArgumentEntry {
    /// Its name among the arguments.
    pub(super) id: String,
    /// The flag, e.g. `--listen`.
    pub(super) flag: String,
    /// The environment variable.
    pub(super) variable: Option<String>,
    /// What it means.
    pub(super) meaning: String,
}

/// Variables that have neither a flag nor a key: secrets, which no file and no list of processes
/// may show.
pub(super) const SECRET_VARIABLES: [(&str, &str); 2] = [
    ("CLOCHE_SECRET_KEY", "The key that seals secrets in the database, instead of a file."),
    ("SANDBOX_EXECUTOR_API_KEY", "The key of the sidecars that run the code."),
];

/// Variables of others that the server understands.
pub(super) const STANDARD_VARIABLES: [(&str, &str); 11] = [
    ("RUST_LOG", "What is logged; overrides `log.level`."),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "The collector of traces; without it none are exported."),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "The same, with the whole path."),
    ("OTEL_EXPORTER_OTLP_HEADERS", "Headers for the collector, such as a token."),
    ("OTEL_EXPORTER_OTLP_TIMEOUT", "Milliseconds for one export; 10000 by default."),
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "A PEM file with authorities for the collector."),
    ("OTEL_EXPORTER_OTLP_PROTOCOL", "`http/protobuf`, the only one."),
    ("OTEL_SERVICE_NAME", "The name of the server in traces; `cloche` by default."),
    ("OTEL_RESOURCE_ATTRIBUTES", "Further attributes of the server in traces."),
    ("OTEL_TRACES_SAMPLER", "Which traces are kept; all by default, or as the caller says."),
    ("OTEL_SDK_DISABLED", "`true` turns the export off."),
];

/// Standard variables whose values may be secrets.
pub(super) const SECRET_STANDARD_VARIABLE: &str = "OTEL_EXPORTER_OTLP_HEADERS";

/// Every setting, sections in alphabetical order after the keys without a section.
pub(super) fn setting_entries() -> Vec<SettingEntry> {
    let arguments = argument_entries();
    let mut entries = Vec::new();
    collect_entries("", settings_schema().as_value(), &arguments, &mut entries);
    entries.sort_by_cached_key(|entry| (section_of(&entry.key).to_owned(), entry.key.clone()));
    entries
}

/// The section of a key: everything before the last dot.
pub(super) fn section_of(key: &str) -> &str {
    key.rsplit_once('.').map_or("", |(section, _)| section)
}

/// Every argument of `cloche serve`.
pub(super) fn argument_entries() -> Vec<ArgumentEntry> {
    command_entries(&ServeArguments::augment_args(Command::new("serve")))
}

/// Every argument of `cloche executor`, which has no file.
pub(super) fn executor_entries() -> Vec<ArgumentEntry> {
    command_entries(&ExecutorArguments::augment_args(Command::new("executor")))
}

fn command_entries(command: &Command) -> Vec<ArgumentEntry> {
    let entry = |argument: &clap::Arg| {
        Some(ArgumentEntry {
            id: argument.get_id().to_string(),
            flag: format!("--{}", argument.get_long()?),
            variable: argument.get_env().map(|name| name.to_string_lossy().into_owned()),
            meaning: argument.get_help().map(ToString::to_string).unwrap_or_default(),
        })
    };
    command.get_arguments().filter_map(entry).collect()
}

fn collect_entries(
    key: &str,
    schema: &Value,
    arguments: &[ArgumentEntry],
    entries: &mut Vec<SettingEntry>,
) {
    let below = |name: &str| {
        if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") }
    };
    // A section that may be absent is one of two things: itself, or nothing.
    let choices = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
    if let Some(section) = choices.into_iter().find(|choice| choice.get("properties").is_some()) {
        return collect_entries(key, section, arguments, entries);
    }
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        for (name, schema) in properties {
            collect_entries(&below(name), schema, arguments, entries);
        }
        return;
    }
    if let Some(values) = schema.get("additionalProperties").filter(|values| values.is_object()) {
        return collect_entries(&below("NAME"), values, arguments, entries);
    }
    let text = |name: &str| schema.get(name).and_then(Value::as_str).map(str::to_owned);
    let default = match text("x-default") {
        Some(words) => SettingDefault::Words(words),
        None => SettingDefault::Literal(schema.get("default").cloned().unwrap_or(Value::Null)),
    };
    let argument = text("x-argument");
    let argument = argument.and_then(|id| arguments.iter().find(|known| known.id == id).cloned());
    let meaning = text("description").unwrap_or_default().replace('\n', " ");
    entries.push(SettingEntry { key: key.to_owned(), meaning, default, argument });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_a_meaning_and_a_default() {
        let entries = setting_entries();
        assert!(entries.len() > 90, "{}", entries.len());
        for entry in &entries {
            assert!(entry.meaning.ends_with('.'), "{} has no meaning", entry.key);
            let is_known = entry.default != SettingDefault::Literal(Value::Null);
            assert!(is_known, "{} has no default", entry.key);
        }
    }

    #[test]
    fn every_named_argument_exists() {
        fn count(schema: &Value) -> usize {
            let here = usize::from(schema.get("x-argument").is_some());
            let below = match schema {
                Value::Object(map) => map.values().map(count).sum(),
                Value::Array(items) => items.iter().map(count).sum(),
                _ => 0,
            };
            here + below
        }
        let found = setting_entries().iter().filter(|entry| entry.argument.is_some()).count();
        assert_eq!(found, count(settings_schema().as_value()));
    }

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let written = super::super::page::defaults_file(&setting_entries());
        let (usual, with_file) = crate::serve::compare_settings(&written);
        assert_eq!(usual, with_file, "{written}");
    }
}
