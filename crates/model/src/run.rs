//! The input of one run: the program, its environment and its limits.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    BrokeredCredential, ByteSize, CpuShare, HOST_IMAGE, ImageRoot, Invalid, Language, MountSpec,
    NetworkLimits, NetworkPolicy, SecretFile, Substrate, ThreadHome, WebTool,
};

/// One program to run once, in a fresh cell.
///
/// The holder of a `RunSpec` has decided that it may run. Nothing below the engine checks again.
#[derive(Clone, Debug)]
pub struct RunSpec {
    /// The language `code` is written in.
    pub language: Language,
    /// The program.
    pub code: Vec<u8>,
    /// The standard input of the program.
    pub stdin: Vec<u8>,
    /// Variables added to the sandbox's own environment. They never replace `PATH` and similar
    /// ones.
    pub env: BTreeMap<String, String>,
    /// Files written to the home before the program starts.
    pub files: Vec<InputFile>,
    /// Credentials that the program reads as files, outside of its home.
    pub secret_files: Vec<SecretFile>,
    /// Credentials that are added to its requests outside of the cell.
    pub brokered: Vec<BrokeredCredential>,
    /// The limits of the run.
    pub limits: RunLimits,
    /// The sandbox it runs in.
    pub sandbox: SandboxShape,
    /// The home it starts with; an empty home without a thread if absent.
    pub home: Option<ThreadHome>,
    /// Storage mounted at `/data/{slug}`.
    pub mounts: Vec<MountSpec>,
    /// Whether what it writes is stored, by an executor that has layers.
    pub stores_files: bool,
}

impl RunSpec {
    /// A run of `code` with default limits in the default sandbox.
    pub fn new(language: Language, code: impl Into<Vec<u8>>) -> Self {
        Self {
            language,
            code: code.into(),
            stdin: Vec::new(),
            env: BTreeMap::new(),
            files: Vec::new(),
            secret_files: Vec::new(),
            brokered: Vec::new(),
            limits: RunLimits::default(),
            sandbox: SandboxShape::default(),
            home: None,
            mounts: Vec::new(),
            stores_files: true,
        }
    }
}

/// A file to write to the guest's home.
#[derive(Clone, Debug)]
pub struct InputFile {
    /// Its name in the home.
    pub name: FileName,
    /// Its content.
    pub content: Vec<u8>,
}

/// A plain file name: no separators, not `.` or `..`, no control characters, at most 255 bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

/// The error for a name that is not a plain file name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a plain file name")]
pub struct InvalidFileName(String);

impl FileName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FileName {
    type Error = InvalidFileName;

    fn try_from(name: String) -> Result<Self, InvalidFileName> {
        let plain = !matches!(name.as_str(), "" | "." | "..")
            && name.len() <= 255
            && !name.chars().any(|c| c == '/' || c == '\\' || c.is_control());
        if !plain {
            // A hostile name can be very long, so the message is truncated.
            return Err(InvalidFileName(name.chars().take(64).collect()));
        }
        Ok(Self(name))
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> Self {
        name.0
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The limits of a run. A run that exceeds one is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RunLimits {
    /// Wall-clock time from the start of the program.
    pub timeout: Duration,
    /// Memory of all its processes and of the files it writes.
    pub memory: ByteSize,
    /// Processor time per second of wall clock.
    pub cpus: CpuShare,
    /// Processes and threads at once.
    pub pids: u32,
    /// Bytes in files at any one time.
    pub disk: ByteSize,
    /// Bytes of each output stream that are kept. The first bytes are kept, the rest is counted.
    pub output: ByteSize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            memory: ByteSize::gib(1),
            cpus: CpuShare::from_cores(1),
            pids: 256,
            disk: ByteSize::mib(512),
            output: ByteSize::mib(16),
        }
    }
}

/// The sandbox of a run, as far as the executor needs it.
///
/// Two runs with equal shapes and limits can use cells of the same pool bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SandboxShape {
    /// The name of the root file system; `host` is a read-only view of this machine's `/usr`.
    pub image: String,
    /// The image of that name, looked up when a run is admitted; `None` for `host`. Not part of
    /// the configuration.
    #[serde(skip)]
    pub root: Option<Arc<ImageRoot>>,
    /// What the program can connect to.
    pub network: NetworkPolicy,
    /// The limits of its network, if it has one.
    #[serde(default)]
    pub network_limits: NetworkLimits,
    /// Whether credentials are added to its requests outside of the cell, so that the cell has to
    /// trust the broker for that. Not part of the configuration.
    #[serde(skip)]
    pub trusts_broker: bool,
    /// Python modules imported once, in the template.
    pub preload: Vec<String>,
    /// Whether interpreters may be forked from a shared template.
    pub template: bool,
    /// The set of walls.
    #[serde(default)]
    pub profile: SandboxProfile,
    /// What builds its cells.
    #[serde(default)]
    pub substrate: Substrate,
    /// The web tools that its code may call, as far as the team's policies allow them.
    #[serde(default)]
    pub tools: Vec<WebTool>,
    /// Whether programs find the client of the web tools on their search paths. Not part of the
    /// configuration.
    #[serde(skip)]
    pub tool_client: bool,
    /// A tag: runs with the same tag may share a template. The executor does not interpret it. Not
    /// part of the configuration.
    #[serde(skip)]
    pub pool_group: Option<String>,
}

impl SandboxShape {
    /// Whether interpreters are forked from a template.
    #[must_use]
    pub fn uses_template(&self) -> bool {
        self.template
            && self.profile == SandboxProfile::Standard
            && self.substrate == Substrate::Native
    }

    /// Checks that the image has an interpreter of a language. The image `host` accepts the
    /// languages of the contract; whether they are installed is found out when a cell starts.
    ///
    /// # Errors
    /// Names the image and lists what it has.
    pub fn check_language(&self, language: Language) -> Result<(), Invalid> {
        let Some(root) = &self.root else {
            return match Language::CORE.contains(&language) {
                true => Ok(()),
                false => Err(Invalid::new(format!(
                    "language must be one of: python, node, bash; got {:?}",
                    language.name()
                ))),
            };
        };
        if root.interpreter_of(language).is_some() {
            return Ok(());
        }
        let image = &self.image;
        let has: Vec<&str> = root.languages().map(Language::name).collect();
        let has = match has.as_slice() {
            [] => "it has no interpreter".to_owned(),
            has => format!("it has {}", has.join(", ")),
        };
        Err(Invalid::new(format!("language: the image {image:?} has no {language}; {has}")))
    }

    /// The same shape for the runs of one group.
    #[must_use]
    pub fn in_group(mut self, group: impl Into<String>) -> Self {
        self.pool_group = Some(group.into());
        self
    }
}

/// The set of walls around a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxProfile {
    /// The walls that common programs can run in.
    #[default]
    Standard,
    /// For hostile tenants: no template, no network sockets, fewer system calls, no speculation.
    Strict,
}

impl SandboxProfile {
    /// The name on the wire and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Strict => "strict",
        }
    }
}

impl FromStr for SandboxProfile {
    type Err = Invalid;

    fn from_str(name: &str) -> Result<Self, Invalid> {
        match name {
            "standard" => Ok(Self::Standard),
            "strict" => Ok(Self::Strict),
            _ => Err(Invalid::new("profile must be one of: standard, strict")),
        }
    }
}

impl Default for SandboxShape {
    fn default() -> Self {
        Self {
            image: HOST_IMAGE.to_owned(),
            root: None,
            network: NetworkPolicy::Blocked,
            network_limits: NetworkLimits::default(),
            trusts_broker: false,
            preload: Vec::new(),
            template: true,
            profile: SandboxProfile::Standard,
            substrate: Substrate::Native,
            tools: Vec::new(),
            tool_client: false,
            pool_group: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_home_are_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\\b", "a\0b", "a\nb", &"x".repeat(256)]
        {
            assert!(FileName::try_from(name.to_owned()).is_err(), "{name:?}");
        }
        for name in ["data.csv", "...", "-rf", "späte Daten.txt", &"x".repeat(255)] {
            assert!(FileName::try_from(name.to_owned()).is_ok(), "{name:?}");
        }
    }
}
