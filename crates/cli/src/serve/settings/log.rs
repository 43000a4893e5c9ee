//! Runs in: server (no capabilities).
//!
//! Logs: `[log]` of the file, `--log-format` and `--log-level`.

use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::Deserialize;
use tracing_subscriber::EnvFilter;

use super::SettingsError;

/// The level if none is set.
const LEVEL: &str = "info";

/// How a log line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(in crate::serve) enum LogFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object on a line.
    Json,
}

/// Logs as flags.
#[derive(Args, Default)]
pub(in crate::serve) struct LogArguments {
    /// Write logs as text or as JSON [default: text].
    #[arg(long, env = "CLOCHE_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// What is logged: a level, or levels by part such as `warn,cloche::requests=info` [default:
    /// info].
    #[arg(long, env = "CLOCHE_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<String>,
    /// The same as `--log-format json`.
    #[arg(long)]
    json_logs: bool,
}

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogFile {
    /// How a log line is written: `text` or `json`.
    #[schemars(with = "String", extend("default" = "text", "x-argument" = "log_format"))]
    format: Option<LogFormat>,
    /// What is logged: `error`, `warn`, `info`, `debug` or `trace`, also by part:
    /// `warn,cloche::requests=info`. `RUST_LOG` overrides it.
    #[schemars(extend("default" = "info", "x-argument" = "log_level"))]
    level: Option<String>,
}

/// The resulting settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::serve) struct LogSettings {
    pub(in crate::serve) format: LogFormat,
    /// Directives of a filter.
    pub(in crate::serve) level: String,
}

pub(super) fn log_settings(
    arguments: &LogArguments,
    file: &LogFile,
) -> Result<LogSettings, SettingsError> {
    let flag = if arguments.json_logs { Some(LogFormat::Json) } else { arguments.log_format };
    let level = arguments.log_level.clone().or_else(|| file.level.clone());
    let level = level.unwrap_or_else(|| LEVEL.to_owned());
    // The library takes any word as the name of a part, and logs nothing then. It takes no word at
    // all as `error`.
    let is_level = |part: &str| {
        let level = part.rsplit('=').next().unwrap_or_default().trim();
        !level.is_empty() && level.parse::<tracing_subscriber::filter::LevelFilter>().is_ok()
    };
    if !level.split(',').all(is_level) || EnvFilter::try_new(&level).is_err() {
        return Err(SettingsError::LogLevel(level));
    }
    // What the MCP library calls a warning is a client that went away.
    let level = format!("rmcp=error,{level}");
    Ok(LogSettings { format: flag.or(file.format).unwrap_or_default(), level })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_overrides_the_file_and_an_unknown_level_is_an_error() {
        let file: LogFile = toml::from_str("format = \"json\"\nlevel = \"warn\"").unwrap();
        let read = |arguments: LogArguments| log_settings(&arguments, &file);
        let settings = read(LogArguments::default()).unwrap();
        assert_eq!((settings.format, &*settings.level), (LogFormat::Json, "rmcp=error,warn"));
        let text = LogArguments { log_format: Some(LogFormat::Text), ..LogArguments::default() };
        assert_eq!(read(text).unwrap().format, LogFormat::Text);
        for (level, is_good) in
            [("debug", true), ("warn,cloche::requests=info", true), ("loud", false), ("", false)]
        {
            let arguments = LogArguments { log_level: Some(level.into()), ..Default::default() };
            assert_eq!(read(arguments).is_ok(), is_good, "{level}");
        }
    }
}
