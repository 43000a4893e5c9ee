//! Credentials: named secret values of a team, and what a run may do with them.
//!
//! A brokered credential is added to requests outside of the cell; the program sees a placeholder.
//! An injected credential is given to the program. Which one it is, is part of the credential.

mod rules;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{CredentialId, FileName, HostName, Invalid, KeyId, Moment, SandboxId, Secret, TeamId};

pub use rules::check_credential_value;

/// The default port of a host that a credential is sent to.
const HTTPS: u16 = 443;
/// The prefix of the variable that tells a program the placeholder of a brokered credential.
const PLACEHOLDER_VARIABLE: &str = "CLOCHE_CREDENTIAL_";
/// The prefix of every placeholder.
const PLACEHOLDER: &str = "cloche-credential-";

/// A credential without its value, which is never shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    /// Its id.
    pub id: CredentialId,
    /// The team that owns it.
    pub team: TeamId,
    /// Its name; unique in the team.
    pub name: String,
    /// What is done with the value.
    pub delivery: CredentialDelivery,
    /// The sandboxes and keys whose executions have it.
    pub bindings: Vec<CredentialBinding>,
    /// When it was created.
    pub created_at: Moment,
    /// When its value or its rules were changed last.
    pub updated_at: Moment,
    /// When an execution had it last, to the minute.
    pub last_used_at: Option<Moment>,
}

impl Credential {
    /// Checks the name and everything that is independent of the value.
    ///
    /// # Errors
    /// On the first rule that is broken.
    pub fn check(&self) -> Result<(), Invalid> {
        crate::check_name("name", &self.name)?;
        rules::check_delivery(&self.delivery)
    }
}

/// What is done with the value of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CredentialDelivery {
    /// Added to requests outside of the cell. The program never has it.
    Brokered(BrokerRule),
    /// Given to the program, which can read and print it.
    Injected(InjectionTarget),
}

impl CredentialDelivery {
    /// The name on the wire.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Brokered(_) => "brokered",
            Self::Injected(_) => "injected",
        }
    }
}

/// To which requests a brokered credential is added, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerRule {
    /// The hosts, by exact name.
    pub hosts: Vec<CredentialHost>,
    /// The methods; every method if empty.
    #[serde(default)]
    pub methods: Vec<String>,
    /// What the path must begin with, segment by segment; every path if empty.
    #[serde(default)]
    pub paths: Vec<String>,
    /// How it is added.
    pub form: CredentialForm,
}

/// A host that a brokered credential is sent to, over TLS only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CredentialHost {
    /// The exact name.
    pub name: HostName,
    /// The TCP port.
    pub port: u16,
}

impl FromStr for CredentialHost {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text.contains('/') {
            return Err(Invalid::new("hosts: write a name such as api.example.com, not a URL"));
        }
        let (name, port) = match text.split_once(':') {
            None => (text, HTTPS),
            Some((name, port)) => {
                let number = port.parse::<u16>().ok().filter(|number| *number != 0);
                let plain = port.bytes().all(|byte| byte.is_ascii_digit());
                let refused = || Invalid::new("hosts: a port must be a number from 1 to 65535");
                (name, number.filter(|_| plain).ok_or_else(refused)?)
            }
        };
        Ok(Self { name: rules::check_host_name(name)?, port })
    }
}

impl fmt::Display for CredentialHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            HTTPS => f.write_str(self.name.as_str()),
            port => write!(f, "{}:{port}", self.name),
        }
    }
}

impl TryFrom<String> for CredentialHost {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<CredentialHost> for String {
    fn from(host: CredentialHost) -> Self {
        host.to_string()
    }
}

/// Where a brokered credential is put in a request. As text: `bearer`, `basic`, `header NAME` or
/// `query NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum CredentialForm {
    /// `Authorization: Bearer VALUE`.
    Bearer,
    /// `Authorization: Basic BASE64`; the value is `user:password`.
    Basic,
    /// The value of a header.
    Header(String),
    /// A parameter of the query.
    Query(String),
}

impl FromStr for CredentialForm {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.split_once(' ') {
            None if text == "bearer" => Ok(Self::Bearer),
            None if text == "basic" => Ok(Self::Basic),
            Some(("header", name)) => Ok(Self::Header(rules::check_header_name(name)?)),
            Some(("query", name)) => Ok(Self::Query(rules::check_parameter_name(name)?)),
            _ => Err(Invalid::new("form must be bearer, basic, header NAME or query NAME")),
        }
    }
}

impl fmt::Display for CredentialForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Basic => f.write_str("basic"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Query(name) => write!(f, "query {name}"),
        }
    }
}

impl TryFrom<String> for CredentialForm {
    type Error = Invalid;

    fn try_from(text: String) -> Result<Self, Invalid> {
        text.parse()
    }
}

impl From<CredentialForm> for String {
    fn from(form: CredentialForm) -> Self {
        form.to_string()
    }
}

/// Where a program finds an injected credential.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InjectionTarget {
    /// An environment variable of this name.
    Env(String),
    /// A file of this name in [`SECRETS_DIR`].
    File(FileName),
}

/// The directory of injected files in a cell.
pub const SECRETS_DIR: &str = "/run/secrets";

/// What a credential is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CredentialBinding {
    /// Every execution in this sandbox has it.
    Sandbox(SandboxId),
    /// Every execution of this key has it.
    Key(KeyId),
}

impl CredentialBinding {
    /// The id of the sandbox or the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Sandbox(id) => id.as_str(),
            Self::Key(id) => id.as_str(),
        }
    }
}

impl FromStr for CredentialBinding {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.starts_with(KeyId::PREFIX) {
            true => text.parse().map(Self::Key),
            false => text.parse().map(Self::Sandbox),
        }
    }
}

/// A credential with its value, for an execution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldCredential {
    /// Its id.
    pub id: CredentialId,
    /// Its name.
    pub name: String,
    /// What is done with the value.
    pub delivery: CredentialDelivery,
    /// The value.
    pub value: Secret,
}

/// A brokered credential of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokeredCredential {
    /// Its name.
    pub name: String,
    /// To which requests it is added, and how.
    pub rule: BrokerRule,
    /// The value.
    pub value: Secret,
}

impl BrokeredCredential {
    /// The text that a program puts in place of the value.
    #[must_use]
    pub fn placeholder(&self) -> String {
        format!("{PLACEHOLDER}{}", self.name)
    }

    /// The variable that tells a program the placeholder.
    #[must_use]
    pub fn placeholder_variable(&self) -> String {
        Self::variable_of(&self.name)
    }

    /// The variable with the placeholder of the brokered credential of this name.
    #[must_use]
    pub fn variable_of(name: &str) -> String {
        format!("{PLACEHOLDER_VARIABLE}{}", name.to_ascii_uppercase().replace('-', "_"))
    }
}

/// An injected credential that is a file of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    /// Its name in [`SECRETS_DIR`].
    pub name: FileName,
    /// Its content.
    pub content: Secret,
}
