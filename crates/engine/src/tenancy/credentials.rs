//! Runs in: server (no capabilities).
//!
//! Credentials: created, changed, bound to sandboxes and keys. A value goes in and never comes out
//! except to executions. The next execution sees every change.

use cloche_model::{
    BrokerRule, Credential, CredentialBinding, CredentialDelivery, CredentialForm, CredentialHost,
    CredentialId, ErrorCode, InjectionTarget, Invalid, Secret, Team, check_credential_value,
};

use super::Tenancy;
use crate::{Refusal, clock, secrets};

/// The most credentials of one team.
const MOST_CREDENTIALS: usize = 1000;

/// A credential to be made.
#[derive(Clone, Debug)]
pub struct CredentialDraft {
    /// The id or name of its team.
    pub team: String,
    /// Its name.
    pub name: String,
    /// `brokered` or `injected`.
    pub kind: String,
    /// What is done with the value.
    pub settings: CredentialSettings,
    /// The value.
    pub value: Secret,
    /// The sandboxes of the team that have it, by id or name.
    pub sandboxes: Vec<String>,
    /// The keys of the team that have it, by id.
    pub keys: Vec<String>,
}

/// What is done with the value of a credential, as an operator gives it; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct CredentialSettings {
    /// Brokered: the hosts that it is sent to.
    pub hosts: Option<Vec<String>>,
    /// Brokered: the methods; empty for every method.
    pub methods: Option<Vec<String>>,
    /// Brokered: the path prefixes; empty for every path.
    pub paths: Option<Vec<String>>,
    /// Brokered: how it is added.
    pub form: Option<String>,
    /// Injected: the name of the variable.
    pub env: Option<String>,
    /// Injected: the name of the file.
    pub file: Option<String>,
}

/// What to change of a credential; `None` leaves it.
#[derive(Clone, Debug, Default)]
pub struct CredentialChange {
    /// What is done with the value.
    pub settings: CredentialSettings,
    /// The new value.
    pub value: Option<Secret>,
}

/// What a credential, connection or volume is bound to or unbound from.
#[derive(Clone, Debug)]
pub enum BindingTarget {
    /// A sandbox of the team, by id or name.
    Sandbox(String),
    /// A key of the team, by id.
    Key(String),
}

impl CredentialSettings {
    fn into_new(self, kind: &str) -> Result<CredentialDelivery, Invalid> {
        match kind {
            "brokered" => {
                let form = CredentialForm::Bearer;
                let empty =
                    BrokerRule { hosts: Vec::new(), methods: Vec::new(), paths: Vec::new(), form };
                self.apply(CredentialDelivery::Brokered(empty))
            }
            "injected" => {
                let given = usize::from(self.env.is_some()) + usize::from(self.file.is_some());
                if given != 1 {
                    let message = "an injected credential needs either env or file";
                    return Err(Invalid::new(message));
                }
                self.apply(CredentialDelivery::Injected(InjectionTarget::Env(String::new())))
            }
            _ => Err(Invalid::new("kind must be one of: brokered, injected")),
        }
    }

    fn apply(self, now: CredentialDelivery) -> Result<CredentialDelivery, Invalid> {
        let Self { hosts, methods, paths, form, env, file } = self;
        match now {
            CredentialDelivery::Brokered(rule) => {
                if env.is_some() || file.is_some() {
                    return Err(Invalid::new("env and file are for injected credentials"));
                }
                let hosts = hosts.map(|hosts| parse_hosts(&hosts)).transpose()?;
                Ok(CredentialDelivery::Brokered(BrokerRule {
                    hosts: hosts.unwrap_or(rule.hosts),
                    methods: methods.unwrap_or(rule.methods),
                    paths: paths.unwrap_or(rule.paths),
                    form: form.map(|form| form.parse()).transpose()?.unwrap_or(rule.form),
                }))
            }
            CredentialDelivery::Injected(target) => {
                if hosts.is_some() || methods.is_some() || paths.is_some() || form.is_some() {
                    let message = "hosts, methods, paths and form are for brokered credentials";
                    return Err(Invalid::new(message));
                }
                Ok(CredentialDelivery::Injected(match (env, file) {
                    (None, None) => target,
                    (Some(env), None) => InjectionTarget::Env(env),
                    (None, Some(file)) => {
                        let name = file.try_into().map_err(|_| {
                            Invalid::new("file must be a plain file name without slashes")
                        })?;
                        InjectionTarget::File(name)
                    }
                    (Some(_), Some(_)) => {
                        return Err(Invalid::new("give either env or file, not both"));
                    }
                }))
            }
        }
    }
}

/// Every host once, in the order given.
fn parse_hosts(hosts: &[String]) -> Result<Vec<CredentialHost>, Invalid> {
    let mut parsed: Vec<CredentialHost> = Vec::new();
    for host in hosts {
        let host = host.parse()?;
        if !parsed.contains(&host) {
            parsed.push(host);
        }
    }
    Ok(parsed)
}

impl Tenancy {
    /// Makes a credential.
    ///
    /// # Errors
    /// When a field breaks a rule, the name is taken, or a sandbox or key is not the team's.
    pub async fn create_credential(&self, draft: CredentialDraft) -> Result<Credential, Refusal> {
        let team = self.find_team(&draft.team).await?;
        let now = clock::now();
        let mut credential = Credential {
            id: CredentialId::from_random(secrets::random_bytes()?),
            team: team.id.clone(),
            name: draft.name,
            delivery: draft.settings.into_new(&draft.kind)?,
            bindings: Vec::new(),
            created_at: now,
            updated_at: now,
            last_used_at: None,
        };
        credential.check()?;
        check_credential_value(&credential.delivery, &draft.value)?;
        let targets = draft.sandboxes.into_iter().map(BindingTarget::Sandbox);
        for target in targets.chain(draft.keys.into_iter().map(BindingTarget::Key)) {
            credential.bindings.push(self.find_binding(&team, target).await?);
        }
        if self.store.list_credentials(Some(&team.id)).await?.len() >= MOST_CREDENTIALS {
            let message = format!("the team has {MOST_CREDENTIALS} credentials; remove one first");
            return Err(Refusal::new(ErrorCode::Conflict, message));
        }
        self.store.create_credential(&credential, &draft.value).await?;
        self.key_cache.forget_all();
        self.find_credential(credential.id.as_str()).await
    }

    /// The credentials of a team (by id or name), or of all.
    ///
    /// # Errors
    /// When there is no such team.
    pub async fn list_credentials(&self, team: Option<&str>) -> Result<Vec<Credential>, Refusal> {
        let team = match team {
            Some(team) => Some(self.find_team(team).await?.id),
            None => None,
        };
        Ok(self.store.list_credentials(team.as_ref()).await?)
    }

    /// One credential, without its value.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_credential(&self, id: &str) -> Result<Credential, Refusal> {
        let missing = || Refusal::not_found("credential");
        let id = id.parse().map_err(|_| missing())?;
        self.store.find_credential(&id).await?.ok_or_else(missing)
    }

    /// Changes the value of a credential, or what is done with it. The next execution sees it.
    ///
    /// # Errors
    /// When there is none, or a field breaks a rule.
    pub async fn update_credential(
        &self,
        id: &str,
        change: CredentialChange,
    ) -> Result<Credential, Refusal> {
        let _turn = self.updating.lock().await;
        let mut credential = self.find_credential(id).await?;
        let before = credential.delivery.clone();
        credential.delivery = change.settings.apply(credential.delivery)?;
        credential.check()?;
        match &change.value {
            Some(value) => check_credential_value(&credential.delivery, value)?,
            None => check_same_value_fits(&before, &credential.delivery)?,
        }
        credential.updated_at = clock::now();
        if !self.store.update_credential(&credential, change.value.as_ref()).await? {
            return Err(Refusal::not_found("credential"));
        }
        self.key_cache.forget_all();
        self.find_credential(id).await
    }

    /// Removes a credential and its bindings.
    ///
    /// # Errors
    /// When there is none.
    pub async fn remove_credential(&self, id: &str) -> Result<(), Refusal> {
        let credential = self.find_credential(id).await?;
        let removed = self.store.delete_credential(&credential.id).await?;
        self.key_cache.forget_all();
        if removed { Ok(()) } else { Err(Refusal::not_found("credential")) }
    }

    /// Gives a credential to every execution of a sandbox or a key.
    ///
    /// # Errors
    /// When there is none, or the sandbox or key is not its team's.
    pub async fn bind_credential(
        &self,
        id: &str,
        target: BindingTarget,
    ) -> Result<Credential, Refusal> {
        let credential = self.find_credential(id).await?;
        let team = self.find_team(credential.team.as_str()).await?;
        let binding = self.find_binding(&team, target).await?;
        self.store.bind_credential(&credential.id, &binding).await?;
        self.key_cache.forget_all();
        self.find_credential(id).await
    }

    /// Takes a credential from a sandbox or a key.
    ///
    /// # Errors
    /// When there is none, or it is not bound there.
    pub async fn unbind_credential(
        &self,
        id: &str,
        target: BindingTarget,
    ) -> Result<Credential, Refusal> {
        let credential = self.find_credential(id).await?;
        let team = self.find_team(credential.team.as_str()).await?;
        let binding = self.find_binding(&team, target).await?;
        let removed = self.store.unbind_credential(&credential.id, &binding).await?;
        self.key_cache.forget_all();
        match removed {
            true => self.find_credential(id).await,
            false => Err(Refusal::not_found("binding")),
        }
    }

    async fn find_binding(
        &self,
        team: &Team,
        target: BindingTarget,
    ) -> Result<CredentialBinding, Refusal> {
        Ok(match target {
            BindingTarget::Sandbox(sandbox) => {
                CredentialBinding::Sandbox(self.sandbox_of(team, &sandbox).await?.id)
            }
            BindingTarget::Key(key) => {
                let key = self.find_key(&key).await?;
                if key.team != team.id {
                    return Err(Refusal::not_found("key"));
                }
                CredentialBinding::Key(key.id)
            }
        })
    }
}

/// A value that stays was checked for the old rules. Where the new ones are narrower, it has to be
/// given again.
fn check_same_value_fits(
    before: &CredentialDelivery,
    after: &CredentialDelivery,
) -> Result<(), Invalid> {
    use CredentialDelivery::{Brokered, Injected};
    let needs_value = match (before, after) {
        (Brokered(before), Brokered(after)) => {
            after.form == CredentialForm::Basic && before.form != CredentialForm::Basic
        }
        (Injected(before), Injected(after)) => {
            matches!(after, InjectionTarget::Env(_)) && matches!(before, InjectionTarget::File(_))
        }
        _ => true,
    };
    match needs_value {
        true => Err(Invalid::new("value must be given again with this change")),
        false => Ok(()),
    }
}
