//! `cloche sandbox`: configurations in which the executions of a key run.

use clap::{Args, Subcommand};
use cloche_model::{ByteSize, CpuShare};
use serde_json::Value;

use super::{
    AdminArguments, AdminClient, AdminError, AdminVerb, AnswerView, EnvChange, Fields,
    client::{list_path, path_segment},
    number_or_none, put_field, variables_to_json,
};

const COLUMNS: &[&str] = &[
    "id",
    "team_id",
    "name",
    "image",
    "network",
    "profile",
    "substrate",
    "cpu",
    "memory_mb",
    "disk_mb",
    "pids",
];

/// The arguments of `cloche sandbox`.
#[derive(Args)]
pub(crate) struct SandboxArguments {
    #[command(subcommand)]
    pub(super) verb: SandboxVerb,
    #[command(flatten)]
    pub(super) common: AdminArguments,
}

#[derive(Subcommand)]
pub(super) enum SandboxVerb {
    /// Create a sandbox configuration.
    Create {
        /// Its name, unique in its team.
        name: String,
        /// The id or name of its team.
        #[arg(long, default_value = "default")]
        team: String,
        /// An environment variable of every execution; can be repeated.
        #[arg(long, value_name = "NAME=VALUE", value_parser = crate::run::parse_variable)]
        env: Vec<(String, String)>,
        #[command(flatten)]
        settings: Box<SandboxSettingArguments>,
    },
    /// List sandbox configurations.
    List {
        /// Only those of this team, by id or name.
        #[arg(long)]
        team: Option<String>,
    },
    /// Show a sandbox configuration.
    Show {
        /// Its id, or TEAM/NAME.
        sandbox: String,
    },
    /// Change a sandbox configuration, with effect from the next execution.
    Set {
        /// Its id, or TEAM/NAME.
        sandbox: String,
        /// A new name.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        env: EnvChange,
        #[command(flatten)]
        settings: Box<SandboxSettingArguments>,
    },
    /// Remove a sandbox configuration that no key uses.
    Rm {
        /// Its id, or TEAM/NAME.
        sandbox: String,
    },
}

/// The settings of a sandbox.
#[derive(Args)]
pub(super) struct SandboxSettingArguments {
    /// The image of its root.
    #[arg(long)]
    image: Option<String>,
    /// What programs can reach: blocked, unrestricted, or allowlist with --allow.
    #[arg(long, value_name = "POLICY")]
    network: Option<String>,
    /// A host or network of the allowlist, with ports if it needs others than 80 and 443. Can be
    /// repeated; the rules replace those that there are.
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// A limit of the network: connections=64, bytes_per_run=1000000; can be repeated.
    /// Limits that are not named get their defaults.
    #[arg(long, value_name = "NAME=NUMBER", value_parser = parse_network_limit)]
    network_limit: Vec<(String, u64)>,
    /// Processor cores: 0.5, 2.
    #[arg(long, value_name = "CORES")]
    cpus: Option<CpuShare>,
    /// Memory: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    memory: Option<u64>,
    /// Bytes in files: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    disk: Option<u64>,
    /// The maximum number of processes and threads.
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,
    /// Python modules to import in advance: pandas,numpy; empty for none.
    #[arg(long, value_name = "MODULES")]
    preload: Option<String>,
    /// Whether interpreters may be forked from a shared template.
    #[arg(long, value_name = "true|false")]
    template: Option<bool>,
    /// standard, or strict for hostile tenants.
    #[arg(long)]
    profile: Option<String>,
    /// What builds the sandbox: native, oci:crun, oci:runc or oci:runsc.
    #[arg(long)]
    substrate: Option<String>,
    /// Web tools that code may call: web_search,fetch_url,people_search; empty for none.
    #[arg(long, value_name = "TOOLS")]
    tools: Option<String>,
    /// Connections and volumes that every execution has, as NAME or NAME:rw, separated by commas.
    #[arg(long, value_name = "STORAGE")]
    storage: Option<String>,
    /// Whether the ledger keeps the code, or only its digest.
    #[arg(long, value_name = "true|false")]
    retain_code: Option<bool>,
    /// Days until records are deleted; `none` for never.
    #[arg(long, value_name = "DAYS", value_parser = number_or_none)]
    retention_days: Option<Value>,
}

impl SandboxSettingArguments {
    fn into_fields(self) -> Fields {
        let mut fields = Fields::new();
        put_field(&mut fields, "image", self.image);
        put_field(&mut fields, "network", self.network);
        put_field(&mut fields, "network_allow", Some(self.allow).filter(|rules| !rules.is_empty()));
        let limits: Fields =
            self.network_limit.into_iter().map(|(name, value)| (name, value.into())).collect();
        put_field(&mut fields, "network_limits", Some(limits).filter(|limits| !limits.is_empty()));
        put_field(&mut fields, "cpu", self.cpus.map(|cpus| f64::from(cpus.millicores()) / 1000.0));
        put_field(&mut fields, "memory_mb", self.memory);
        put_field(&mut fields, "disk_mb", self.disk);
        put_field(&mut fields, "pids", self.pids);
        put_field(&mut fields, "preload", self.preload.as_deref().map(split_words));
        put_field(&mut fields, "template", self.template);
        put_field(&mut fields, "profile", self.profile);
        put_field(&mut fields, "substrate", self.substrate);
        put_field(&mut fields, "tools", self.tools.as_deref().map(split_words));
        put_field(&mut fields, "storage", self.storage.as_deref().map(split_words));
        put_field(&mut fields, "retain_code", self.retain_code);
        put_field(&mut fields, "retention_days", self.retention_days);
        fields
    }
}

fn split_words(text: &str) -> Vec<Value> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Value::from).collect()
}

/// Parses `NAME=NUMBER`. The server knows the names.
fn parse_network_limit(text: &str) -> Result<(String, u64), String> {
    let limit = text
        .split_once('=')
        .and_then(|(name, number)| Some((name.to_owned(), number.parse().ok()?)));
    limit.ok_or_else(|| format!("{text} is not a limit such as connections=64"))
}

/// Parses a size in whole mebibytes, the unit of the API.
fn parse_mebibytes(text: &str) -> Result<u64, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    match size.bytes() {
        bytes if bytes % (1 << 20) == 0 => Ok(bytes >> 20),
        _ => Err(format!("{text} is not a whole number of mebibytes")),
    }
}

/// The path of a sandbox, by its id or by `TEAM/NAME`.
fn find_sandbox_path(server: &AdminClient, sandbox: &str) -> Result<String, AdminError> {
    let Some((team, name)) = sandbox.split_once('/') else {
        return Ok(format!("sandboxes/{}", path_segment(sandbox)));
    };
    let list = server.get(&list_path("sandboxes", Some(team)))?;
    let all = list["sandboxes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|one| one["name"] == name).and_then(|one| one["id"].as_str());
    let missing = || AdminError::NoSuchSandbox { team: team.to_owned(), name: name.to_owned() };
    Ok(format!("sandboxes/{}", path_segment(found.ok_or_else(missing)?)))
}

impl AdminVerb for SandboxVerb {
    fn send_to(self, server: &AdminClient) -> Result<(Value, AnswerView), AdminError> {
        Ok(match self {
            Self::Create { name, team, env, settings } => {
                let mut fields = settings.into_fields();
                put_field(&mut fields, "team", Some(team));
                put_field(&mut fields, "name", Some(name));
                put_field(&mut fields, "env_vars", variables_to_json(env));
                (server.post("sandboxes", &fields.into())?, AnswerView::Record)
            }
            Self::List { team } => (
                server.get(&list_path("sandboxes", team.as_deref()))?,
                AnswerView::List("sandboxes", COLUMNS),
            ),
            Self::Show { sandbox } => {
                (server.get(&find_sandbox_path(server, &sandbox)?)?, AnswerView::Record)
            }
            Self::Set { sandbox, name, env, settings } => {
                let path = find_sandbox_path(server, &sandbox)?;
                let mut fields = settings.into_fields();
                put_field(&mut fields, "name", name);
                put_field(&mut fields, "env_vars", env.apply(server, &path)?);
                (server.patch(&path, &fields.into())?, AnswerView::Record)
            }
            Self::Rm { sandbox } => {
                let done = AnswerView::Done(format!("removed {sandbox}"));
                (server.delete(&find_sandbox_path(server, &sandbox)?)?, done)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_mebibytes() {
        assert_eq!(parse_mebibytes("2G"), Ok(2048));
        assert!(parse_mebibytes("1k").unwrap_err().contains("whole number of mebibytes"));
        assert!(parse_mebibytes("lots").is_err());
    }

    #[test]
    fn an_empty_list_of_words_is_accepted() {
        assert_eq!(split_words(" pandas, numpy"), ["pandas", "numpy"]);
        assert!(split_words("").is_empty());
    }
}
