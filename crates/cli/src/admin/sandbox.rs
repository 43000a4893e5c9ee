//! `cloche sandbox`: what the executions of a key run in.

use clap::{Args, Subcommand};
use cloche_model::{ByteSize, Cpus};
use serde_json::Value;

use super::{
    AdminError, Common, EnvChange, Fields, Server, Show, Verb, number_or_none, put,
    server::{query, segment},
    variables,
};

const COLUMNS: &[&str] = &[
    "id",
    "team_id",
    "name",
    "image",
    "network",
    "profile",
    "cpu",
    "memory_mb",
    "disk_mb",
    "pids",
];

/// What `cloche sandbox` takes.
#[derive(Args)]
pub(crate) struct SandboxArguments {
    #[command(subcommand)]
    pub(super) verb: SandboxVerb,
    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Subcommand)]
pub(super) enum SandboxVerb {
    /// Make a sandbox configuration.
    Create {
        /// Its name, unique in its team.
        name: String,
        /// The id or name of its team.
        #[arg(long, default_value = "default")]
        team: String,
        /// An environment variable of every execution; can be repeated.
        #[arg(long, value_name = "NAME=VALUE", value_parser = crate::run::variable)]
        env: Vec<(String, String)>,
        #[command(flatten)]
        settings: Box<Settings>,
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
    /// Change a sandbox configuration; the next execution runs in the new one.
    Set {
        /// Its id, or TEAM/NAME.
        sandbox: String,
        /// A new name.
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        env: EnvChange,
        #[command(flatten)]
        settings: Box<Settings>,
    },
    /// Remove a sandbox configuration that no key uses.
    Rm {
        /// Its id, or TEAM/NAME.
        sandbox: String,
    },
}

/// What a sandbox has.
#[derive(Args)]
pub(super) struct Settings {
    /// What its root is made of.
    #[arg(long)]
    image: Option<String>,
    /// blocked or unrestricted.
    #[arg(long)]
    network: Option<String>,
    /// Processor cores: 0.5, 2.
    #[arg(long, value_name = "CORES")]
    cpus: Option<Cpus>,
    /// Memory: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    memory: Option<u64>,
    /// Bytes in files: 512M, 2G.
    #[arg(long, value_name = "SIZE", value_parser = mebibytes)]
    disk: Option<u64>,
    /// Processes and threads at once.
    #[arg(long, value_name = "COUNT")]
    pids: Option<u32>,
    /// Python modules that are imported before the code comes: pandas,numpy; empty for none.
    #[arg(long, value_name = "MODULES")]
    preload: Option<String>,
    /// Whether interpreters may be forked from a shared template.
    #[arg(long, value_name = "true|false")]
    template: Option<bool>,
    /// standard, or strict for hostile tenants.
    #[arg(long)]
    profile: Option<String>,
    /// Storage connections by name: a,b; empty for none.
    #[arg(long, value_name = "NAMES")]
    storage: Option<String>,
    /// Whether the ledger keeps the code, or only its digest.
    #[arg(long, value_name = "true|false")]
    retain_code: Option<bool>,
    /// Days until records are deleted; `none` for never.
    #[arg(long, value_name = "DAYS", value_parser = number_or_none)]
    retention_days: Option<Value>,
}

impl Settings {
    fn fields(self) -> Fields {
        let mut fields = Fields::new();
        put(&mut fields, "image", self.image);
        put(&mut fields, "network", self.network);
        put(&mut fields, "cpu", self.cpus.map(|cpus| f64::from(cpus.milli()) / 1000.0));
        put(&mut fields, "memory_mb", self.memory);
        put(&mut fields, "disk_mb", self.disk);
        put(&mut fields, "pids", self.pids);
        put(&mut fields, "preload", self.preload.as_deref().map(words));
        put(&mut fields, "template", self.template);
        put(&mut fields, "profile", self.profile);
        put(&mut fields, "storage", self.storage.as_deref().map(words));
        put(&mut fields, "retain_code", self.retain_code);
        put(&mut fields, "retention_days", self.retention_days);
        fields
    }
}

fn words(text: &str) -> Vec<Value> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(Value::from).collect()
}

/// Reads a size in whole mebibytes, which is how the API counts.
fn mebibytes(text: &str) -> Result<u64, String> {
    let size: ByteSize = text.parse().map_err(|error| format!("{error}"))?;
    match size.bytes() {
        bytes if bytes % (1 << 20) == 0 => Ok(bytes >> 20),
        _ => Err(format!("{text} is not a whole number of mebibytes")),
    }
}

/// Where it is, by its id or by `TEAM/NAME`.
fn path(server: &Server, sandbox: &str) -> Result<String, AdminError> {
    let Some((team, name)) = sandbox.split_once('/') else {
        return Ok(format!("sandboxes/{}", segment(sandbox)));
    };
    let list = server.get(&query("sandboxes", Some(team)))?;
    let all = list["sandboxes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|one| one["name"] == name).and_then(|one| one["id"].as_str());
    let missing = || AdminError::NoSuchSandbox { team: team.to_owned(), name: name.to_owned() };
    Ok(format!("sandboxes/{}", segment(found.ok_or_else(missing)?)))
}

impl Verb for SandboxVerb {
    fn ask(self, server: &Server) -> Result<(Value, Show), AdminError> {
        Ok(match self {
            Self::Create { name, team, env, settings } => {
                let mut fields = settings.fields();
                put(&mut fields, "team", Some(team));
                put(&mut fields, "name", Some(name));
                put(&mut fields, "env_vars", variables(env));
                (server.post("sandboxes", &fields.into())?, Show::Record)
            }
            Self::List { team } => (
                server.get(&query("sandboxes", team.as_deref()))?,
                Show::List("sandboxes", COLUMNS),
            ),
            Self::Show { sandbox } => (server.get(&path(server, &sandbox)?)?, Show::Record),
            Self::Set { sandbox, name, env, settings } => {
                let path = path(server, &sandbox)?;
                let mut fields = settings.fields();
                put(&mut fields, "name", name);
                put(&mut fields, "env_vars", env.apply(server, &path)?);
                (server.patch(&path, &fields.into())?, Show::Record)
            }
            Self::Rm { sandbox } => {
                let done = Show::Done(format!("removed {sandbox}"));
                (server.delete(&path(server, &sandbox)?)?, done)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_whole_mebibytes() {
        assert_eq!(mebibytes("2G"), Ok(2048));
        assert!(mebibytes("1k").unwrap_err().contains("whole number of mebibytes"));
        assert!(mebibytes("lots").is_err());
    }

    #[test]
    fn words_can_be_none() {
        assert_eq!(words(" pandas, numpy"), ["pandas", "numpy"]);
        assert!(words("").is_empty());
    }
}
