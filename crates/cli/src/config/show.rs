//! The effective settings: the value of each, and where it comes from.

use std::{fs, path::Path};

use clap::{ArgMatches, parser::ValueSource};
use serde::Serialize;
use serde_json::Value;

use super::reference::{
    SECRET_STANDARD_VARIABLE, SECRET_VARIABLES, STANDARD_VARIABLES, SettingDefault, SettingEntry,
};
use crate::serve::Failure;

/// What stands in place of a secret.
const STARS: &str = "********";

/// One effective setting.
#[derive(Debug, Serialize)]
pub(super) struct EffectiveSetting {
    key: String,
    value: Value,
    /// `default`, `file`, a flag or an environment variable.
    origin: String,
}

/// Every setting with its value. A file that sets a key with a name of the operator's choice adds
/// one entry for each name.
pub(super) fn effective_settings(
    entries: &[SettingEntry],
    file: Option<&Path>,
    matches: Option<&ArgMatches>,
) -> Result<Vec<EffectiveSetting>, Failure> {
    let text = file.map(fs::read_to_string).transpose()?.unwrap_or_default();
    let table = toml::from_str::<toml::Table>(&text)?;
    let table = serde_json::to_value(table)?;
    let mut shown = Vec::new();
    for entry in entries {
        if let Some(found) = matches.and_then(|matches| from_argument(entry, matches)) {
            shown.push(found);
            continue;
        }
        let before = shown.len();
        let path: Vec<&str> = entry.key.split('.').collect();
        collect_from_file(&table, &path, String::new(), &mut shown);
        if shown.len() == before && !entry.key.contains("NAME") {
            let value = match &entry.default {
                SettingDefault::Literal(value) => value.clone(),
                SettingDefault::Words(words) => Value::String(format!("({words})")),
            };
            shown.push(EffectiveSetting {
                key: entry.key.clone(),
                value,
                origin: "default".into(),
            });
        }
    }
    collect_variables(|name| std::env::var(name).ok(), &mut shown);
    Ok(shown)
}

/// Adds the variables that have no key: secrets as stars, standard ones as they are.
fn collect_variables(variable: impl Fn(&str) -> Option<String>, shown: &mut Vec<EffectiveSetting>) {
    let secret = SECRET_VARIABLES.iter().map(|(name, _)| (*name, true));
    let standard = STANDARD_VARIABLES.iter();
    let standard = standard.map(|(name, _)| (*name, *name == SECRET_STANDARD_VARIABLE));
    for (name, is_secret) in secret.chain(standard) {
        let Some(text) = variable(name).filter(|text| !text.is_empty()) else { continue };
        let text = if is_secret { STARS.to_owned() } else { without_password(&text) };
        let (key, origin) = (name.to_owned(), name.to_owned());
        shown.push(EffectiveSetting { key, value: Value::String(text), origin });
    }
}

fn from_argument(entry: &SettingEntry, matches: &ArgMatches) -> Option<EffectiveSetting> {
    let argument = entry.argument.as_ref()?;
    // Arguments that `matches` does not know were not given either.
    let source = matches
        .try_contains_id(&argument.id)
        .ok()?
        .then(|| matches.value_source(&argument.id))??;
    let origin = match source {
        ValueSource::CommandLine => argument.flag.clone(),
        ValueSource::EnvVariable => argument.variable.clone()?,
        _ => return None,
    };
    let values: Vec<String> = matches
        .get_raw(&argument.id)?
        .map(|value| without_password(&value.to_string_lossy()))
        .collect();
    let value = match (&values[..], &entry.default) {
        ([], _) => return None,
        (_, SettingDefault::Literal(Value::Array(_))) => Value::from(values),
        ([only], _) => Value::String(only.clone()),
        _ => Value::from(values),
    };
    Some(EffectiveSetting { key: entry.key.clone(), value, origin })
}

fn collect_from_file(table: &Value, path: &[&str], key: String, shown: &mut Vec<EffectiveSetting>) {
    let Some((name, rest)) = path.split_first() else {
        let value = match table {
            Value::String(text) => Value::String(without_password(text)),
            other => other.clone(),
        };
        shown.push(EffectiveSetting { key, value, origin: "file".to_owned() });
        return;
    };
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    let Some(map) = table.as_object() else { return };
    for (own, value) in map {
        if own == name || *name == "NAME" {
            collect_from_file(value, rest, below(own), shown);
        }
    }
}

/// The text, with stars for the password of a URL.
fn without_password(text: &str) -> String {
    let Ok(mut url) = text.parse::<url::Url>() else { return text.to_owned() };
    if url.password().is_none() || url.set_password(Some(STARS)).is_err() {
        return text.to_owned();
    }
    url.to_string()
}

pub(super) fn to_json(shown: &[EffectiveSetting]) -> Result<String, Failure> {
    Ok(serde_json::to_string_pretty(shown)? + "\n")
}

pub(super) fn to_table(shown: &[EffectiveSetting]) -> String {
    let width = shown.iter().map(|setting| setting.key.len()).max().unwrap_or_default();
    let line = |setting: &EffectiveSetting| {
        let value = match &setting.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("{:<width$}  {:<28}  {}\n", setting.key, value, setting.origin)
    };
    shown.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command};

    use super::*;
    use crate::{config::reference::setting_entries, serve::ServeArguments};

    fn show(file: &str, arguments: &[&str]) -> Vec<(String, String, String)> {
        let path = tempfile::NamedTempFile::new().unwrap();
        fs::write(path.path(), file).unwrap();
        let command = ServeArguments::augment_args(Command::new("serve"));
        let matches = command.get_matches_from([&["serve"], arguments].concat());
        let shown =
            effective_settings(&setting_entries(), Some(path.path()), Some(&matches)).unwrap();
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        shown.iter().map(|it| (it.key.clone(), text(&it.value), it.origin.clone())).collect()
    }

    fn row(rows: &[(String, String, String)], key: &str) -> (String, String) {
        let found = rows.iter().find(|row| row.0 == key);
        found.map(|row| (row.1.clone(), row.2.clone())).unwrap_or_default()
    }

    #[test]
    fn variables_without_a_key_are_shown_and_secrets_are_stars() {
        let mut shown = Vec::new();
        let variable = |name: &str| match name {
            "CLOCHE_SECRET_KEY" | "OTEL_EXPORTER_OTLP_HEADERS" => Some("hidden".to_owned()),
            "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://u:hidden@127.0.0.1:4318".to_owned()),
            _ => None,
        };
        collect_variables(variable, &mut shown);
        assert_eq!(shown.len(), 3, "{shown:?}");
        assert!(!format!("{shown:?}").contains("hidden"), "{shown:?}");
        assert!(to_table(&shown).contains("http://u:********@127.0.0.1:4318"));
    }

    #[test]
    fn a_flag_overrides_the_file_and_the_file_the_default() {
        let file = "grace_seconds = 5\n[pool]\nfloor = 3\n[agent.providers.main]\n\
            protocol = \"openai\"\nbase_url = \"http://user:hidden@127.0.0.1\"\n";
        let rows = show(file, &["--grace", "7", "--webhook-allow", "10.0.0.0/8,10.1.0.0/16"]);
        assert_eq!(row(&rows, "grace_seconds"), ("7".into(), "--grace".into()));
        assert_eq!(row(&rows, "pool.floor"), ("3".into(), "file".into()));
        assert_eq!(row(&rows, "pool.ceiling"), ("128".into(), "default".into()));
        let allow = row(&rows, "webhook.allow");
        assert_eq!(allow, ("[\"10.0.0.0/8\",\"10.1.0.0/16\"]".into(), "--webhook-allow".into()));
        let url = row(&rows, "agent.providers.main.base_url").0;
        assert_eq!(url, "http://user:********@127.0.0.1/");
        assert!(rows.iter().all(|row| !row.1.contains("hidden")));
    }
}
