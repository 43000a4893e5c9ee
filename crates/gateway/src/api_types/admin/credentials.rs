//! The wire format of credentials. A value comes in, and no type that goes out has a place for it.

use cloche_engine::{
    BindingTarget, CredentialChange, CredentialDraft, CredentialSettings, format_rfc3339,
};
use cloche_model::{
    BrokeredCredential, Credential, CredentialBinding, CredentialDelivery, InjectionTarget,
    Invalid, SECRETS_DIR, Secret,
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A request to create a credential.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateCredential {
    /// The id or name of its team.
    team: String,
    #[schema(min_length = 1, max_length = 63, pattern = "^[a-z0-9][a-z0-9-]*$")]
    name: String,
    /// `brokered`: added to requests outside of the sandbox, the code sees only a placeholder.
    /// `injected`: given to the code, which can read and print it.
    #[schema(value_type = CredentialKind)]
    kind: String,
    /// Brokered: the exact names of the hosts that it is sent to, with a port if it is not 443.
    #[schema(value_type = Option<Vec<String>>, example = json!(["api.example.com"]))]
    hosts: Option<Vec<String>>,
    /// Brokered: the methods of the requests that it is added to. Absent: every method.
    methods: Option<Vec<String>>,
    /// Brokered: prefixes of the paths of the requests that it is added to. Absent: every path.
    paths: Option<Vec<String>>,
    /// Brokered: `bearer` (the default), `basic`, `header NAME` or `query NAME`.
    #[schema(example = "header X-Api-Key")]
    form: Option<String>,
    /// Injected: the name of the environment variable.
    env: Option<String>,
    /// Injected: the name of the file in `/run/secrets`.
    file: Option<String>,
    /// The value. It is stored sealed and never shown again.
    #[schema(value_type = String, min_length = 1, max_length = 65536, write_only)]
    value: Secret,
    /// Sandboxes of the team whose executions have it, by id or name.
    #[serde(default)]
    sandboxes: Vec<String>,
    /// Keys of the team whose executions have it, by id.
    #[serde(default)]
    keys: Vec<String>,
}

/// What is done with the value of a credential.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its schema is used; the engine checks the name")]
pub(crate) enum CredentialKind {
    /// Added to requests outside of the sandbox.
    Brokered,
    /// Given to the code.
    Injected,
}

impl From<CreateCredential> for CredentialDraft {
    fn from(body: CreateCredential) -> Self {
        let CreateCredential { hosts, methods, paths, form, env, file, .. } = body;
        Self {
            team: body.team,
            name: body.name,
            kind: body.kind,
            settings: CredentialSettings { hosts, methods, paths, form, env, file },
            value: body.value,
            sandboxes: body.sandboxes,
            keys: body.keys,
        }
    }
}

/// Changes to a credential. A new value is used from the next execution on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateCredential {
    hosts: Option<Vec<String>>,
    methods: Option<Vec<String>>,
    paths: Option<Vec<String>>,
    form: Option<String>,
    env: Option<String>,
    file: Option<String>,
    /// The new value.
    #[schema(value_type = Option<String>, min_length = 1, max_length = 65536, write_only)]
    value: Option<Secret>,
}

impl From<UpdateCredential> for CredentialChange {
    fn from(body: UpdateCredential) -> Self {
        let UpdateCredential { hosts, methods, paths, form, env, file, value } = body;
        Self { settings: CredentialSettings { hosts, methods, paths, form, env, file }, value }
    }
}

/// What a credential is bound to or unbound from: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CredentialTarget {
    /// A sandbox of the team, by id or name.
    sandbox: Option<String>,
    /// A key of the team, by id.
    key: Option<String>,
}

impl TryFrom<CredentialTarget> for BindingTarget {
    type Error = Invalid;

    fn try_from(body: CredentialTarget) -> Result<Self, Invalid> {
        match (body.sandbox, body.key) {
            (Some(sandbox), None) => Ok(Self::Sandbox(sandbox)),
            (None, Some(key)) => Ok(Self::Key(key)),
            _ => Err(Invalid::new("give either sandbox or key")),
        }
    }
}

/// A credential, without its value.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialRecord {
    id: String,
    team_id: String,
    name: String,
    #[schema(value_type = CredentialKind)]
    kind: &'static str,
    /// Whether the code in the sandbox can read the value.
    visible_to_code: bool,
    /// Brokered: the hosts that it is sent to.
    hosts: Vec<String>,
    /// Brokered: the methods; every method if empty.
    methods: Vec<String>,
    /// Brokered: the path prefixes; every path if empty.
    paths: Vec<String>,
    /// Brokered: how it is added.
    form: Option<String>,
    /// The variable with the value, or with the placeholder of a brokered credential.
    env: Option<String>,
    /// Injected: the path of the file.
    file: Option<String>,
    /// The ids of the sandboxes whose executions have it.
    sandboxes: Vec<String>,
    /// The ids of the keys whose executions have it.
    keys: Vec<String>,
    created_at: String,
    /// When its value or its rules were changed last.
    updated_at: String,
    /// When an execution had it last, to the minute.
    last_used_at: Option<String>,
}

impl From<Credential> for CredentialRecord {
    fn from(credential: Credential) -> Self {
        let kind = credential.delivery.kind();
        let name = credential.name;
        let mut record = Self {
            id: credential.id.into(),
            team_id: credential.team.into(),
            kind,
            visible_to_code: false,
            hosts: Vec::new(),
            methods: Vec::new(),
            paths: Vec::new(),
            form: None,
            env: None,
            file: None,
            sandboxes: Vec::new(),
            keys: Vec::new(),
            created_at: format_rfc3339(credential.created_at),
            updated_at: format_rfc3339(credential.updated_at),
            last_used_at: credential.last_used_at.map(format_rfc3339),
            name: name.clone(),
        };
        for binding in credential.bindings {
            match binding {
                CredentialBinding::Sandbox(id) => record.sandboxes.push(id.into()),
                CredentialBinding::Key(id) => record.keys.push(id.into()),
            }
        }
        match credential.delivery {
            CredentialDelivery::Brokered(rule) => {
                record.env = Some(BrokeredCredential::variable_of(&name));
                record.hosts = rule.hosts.iter().map(ToString::to_string).collect();
                record.form = Some(rule.form.to_string());
                (record.methods, record.paths) = (rule.methods, rule.paths);
            }
            CredentialDelivery::Injected(target) => {
                record.visible_to_code = true;
                match target {
                    InjectionTarget::Env(name) => record.env = Some(name),
                    InjectionTarget::File(name) => {
                        record.file = Some(format!("{SECRETS_DIR}/{name}"));
                    }
                }
            }
        }
        record
    }
}

/// A list of credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CredentialList {
    pub(crate) credentials: Vec<CredentialRecord>,
}
