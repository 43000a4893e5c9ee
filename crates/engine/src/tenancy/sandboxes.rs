//! Runs in: server (no capabilities).
//!
//! Sandbox configurations. A setting that this build does not support is refused when it is saved.

use std::{collections::BTreeSet, ops::RangeInclusive};

use cloche_model::{
    ByteSize, CpuShare, EnvVars, Invalid, LedgerRetention, NetworkPolicy, Sandbox, SandboxId,
    SandboxResources, SandboxShape, SecretVars, Substrate, Team, WebTool, check_name,
};
use cloche_store::{Revisioned, UpdateOutcome};

use super::{
    EnvDraft, NetworkChange, Tenancy, UPDATE_ATTEMPTS, contended_refusal,
    sandbox_network::check_profile_network,
};
use crate::{
    Refusal, clock, secrets,
    sources::{SandboxStorage, check_mount_substrate},
};

/// The most modules of a preload list.
const MAX_PRELOAD: usize = 50;
/// From the smallest memory in which an interpreter starts, to a tebibyte.
const MEMORY_MB: RangeInclusive<u64> = 16..=1 << 20;
const DISK_MB: RangeInclusive<u64> = 1..=1 << 20;
/// From what an interpreter with a few threads needs, to what the kernel can count.
const PIDS: RangeInclusive<u64> = 8..=1 << 22;
const RETENTION_DAYS: RangeInclusive<u64> = 1..=36_500;

/// A sandbox to be made.
#[derive(Clone, Debug)]
pub struct SandboxDraft {
    /// The id or name of its team.
    pub team: String,
    /// The name people use.
    pub name: String,
    /// The rest.
    pub settings: SandboxChange,
}

impl SandboxDraft {
    /// With the default settings.
    pub fn new(team: impl Into<String>, name: impl Into<String>) -> Self {
        Self { team: team.into(), name: name.into(), settings: SandboxChange::default() }
    }
}

/// What to change of a sandbox; `None` leaves it, or the default for a new one.
#[derive(Clone, Debug, Default)]
pub struct SandboxChange {
    /// The name.
    pub name: Option<String>,
    /// The image: `host`, or the name or digest of an image that was pulled or imported.
    pub image: Option<String>,
    /// What programs can reach over the network.
    pub network: NetworkChange,
    /// Modules to import in the template.
    pub preload: Option<Vec<String>>,
    /// Whether interpreters may be forked from a template.
    pub template: Option<bool>,
    /// How closely programs are held, by name.
    pub profile: Option<String>,
    /// What builds its cells, by name.
    pub substrate: Option<String>,
    /// The web tools that code may call, by name.
    pub tools: Option<Vec<String>>,
    /// The connections and volumes that every execution has: `NAME`, or `NAME:rw` to write.
    pub storage: Option<Vec<String>>,
    /// What a run may use.
    pub resources: ResourcesChange,
    /// Environment variables.
    pub env: Option<EnvDraft>,
    /// What the ledger keeps.
    pub retention: RetentionChange,
}

/// What to change of what a run may use; `None` leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResourcesChange {
    /// Processors.
    pub cpus: Option<CpuShare>,
    /// Memory.
    pub memory: Option<ByteSize>,
    /// What it may write.
    pub disk: Option<ByteSize>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

impl ResourcesChange {
    fn apply(self, now: SandboxResources) -> SandboxResources {
        SandboxResources {
            cpus: self.cpus.unwrap_or(now.cpus),
            memory: self.memory.unwrap_or(now.memory),
            disk: self.disk.unwrap_or(now.disk),
            pids: self.pids.unwrap_or(now.pids),
        }
    }
}

/// What to change of what the ledger keeps; `None` leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub struct RetentionChange {
    /// Whether it keeps the code.
    pub code: Option<bool>,
    /// Days until records are deleted; `Some(None)` for never.
    pub days: Option<Option<u32>>,
}

impl RetentionChange {
    fn apply(self, now: LedgerRetention) -> LedgerRetention {
        LedgerRetention { code: self.code.unwrap_or(now.code), days: self.days.unwrap_or(now.days) }
    }
}

impl SandboxChange {
    /// Applies it to a sandbox and checks the whole.
    fn apply(self, sandbox: &mut Sandbox, team: &Team) -> Result<(), Invalid> {
        if let Some(name) = self.name {
            sandbox.name = name;
        }
        if let Some(image) = self.image {
            sandbox.shape.image = image;
        }
        self.network.apply(&mut sandbox.shape)?;
        if let Some(preload) = self.preload {
            check_preload(&preload)?;
            sandbox.shape.preload = preload;
        }
        sandbox.shape.template = self.template.unwrap_or(sandbox.shape.template);
        if let Some(profile) = self.profile {
            sandbox.shape.profile = profile.parse()?;
        }
        if let Some(tools) = self.tools {
            sandbox.shape.tools = check_tools(&tools)?;
        }
        if let Some(substrate) = self.substrate {
            sandbox.shape.substrate = substrate.parse()?;
        }
        check_profile_network(&sandbox.shape)?;
        check_substrate(&sandbox.shape)?;
        sandbox.resources = self.resources.apply(sandbox.resources);
        if let Some(env) = self.env {
            (sandbox.env, sandbox.secret_env) = env.into_vars(&sandbox.secret_env)?;
        }
        sandbox.retention = self.retention.apply(sandbox.retention);
        check_name("name", &sandbox.name)?;
        if let Some(days) = sandbox.retention.days {
            check_range("retention_days", RETENTION_DAYS, u64::from(days))?;
        }
        check_resources(&sandbox.resources, team)
    }
}

/// The web tools of these names, each once and in order.
fn check_tools(names: &[String]) -> Result<Vec<WebTool>, Invalid> {
    let tools = names.iter().map(|name| name.parse()).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(tools.into_iter().collect())
}

/// Networks and web tools are attached to native cells only.
fn check_substrate(shape: &SandboxShape) -> Result<(), Invalid> {
    if shape.substrate == Substrate::Native {
        return Ok(());
    }
    if shape.network != NetworkPolicy::Blocked {
        return Err(Invalid::new("network: a network needs the substrate native"));
    }
    if !shape.tools.is_empty() {
        return Err(Invalid::new("tools: web tools need the substrate native"));
    }
    Ok(())
}

fn check_preload(preload: &[String]) -> Result<(), Invalid> {
    if preload.len() > MAX_PRELOAD {
        return Err(Invalid::new(format!(
            "preload exceeds {MAX_PRELOAD} modules, got {}",
            preload.len()
        )));
    }
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let is_module = |name: &String| name.len() <= 128 && name.split('.').all(is_word);
    match preload.iter().find(|name| !is_module(name)) {
        Some(_) => Err(Invalid::new("preload: each entry must be the name of a Python module")),
        None => Ok(()),
    }
}

fn check_range(field: &str, range: RangeInclusive<u64>, value: u64) -> Result<(), Invalid> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    Err(Invalid::new(format!("{field} must be between {least} and {most}, got {value}")))
}

fn check_resources(resources: &SandboxResources, team: &Team) -> Result<(), Invalid> {
    let allowance = team.effective_limits();
    let plan = team.plan.display_name();
    check_range("memory_mb", MEMORY_MB, resources.memory.bytes() >> 20)?;
    check_range("disk_mb", DISK_MB, resources.disk.bytes() >> 20)?;
    check_range("pids", PIDS, u64::from(resources.pids))?;
    if let Some(limit) = allowance.memory.filter(|limit| resources.memory > *limit) {
        return Err(Invalid::new(format!(
            "memory_mb: {} exceeds the {plan} plan's maximum of {limit}",
            resources.memory
        )));
    }
    if let Some(limit) = allowance.cpus.filter(|limit| resources.cpus > *limit) {
        return Err(Invalid::new(format!(
            "cpu: {} cores exceed the {plan} plan's maximum of {limit}",
            resources.cpus
        )));
    }
    Ok(())
}

impl Tenancy {
    /// Makes a sandbox.
    ///
    /// # Errors
    /// When a field breaks a rule, names what this build cannot give, or the name is taken.
    pub async fn create_sandbox(&self, draft: SandboxDraft) -> Result<Sandbox, Refusal> {
        let team = self.find_team(&draft.team).await?;
        let mut sandbox = Sandbox {
            id: SandboxId::from_random(secrets::random_bytes()?),
            team: team.id.clone(),
            name: draft.name,
            shape: SandboxShape::default(),
            resources: SandboxResources::default(),
            env: EnvVars::new(),
            secret_env: SecretVars::new(),
            retention: LedgerRetention::default(),
            created_at: clock::now(),
        };
        let is_chosen = draft.settings.substrate.is_some();
        let names = draft.settings.storage.clone().unwrap_or_default();
        let storage = SandboxStorage::resolve(&*self.store, &team, &names).await?;
        self.choose_image(draft.settings).await?.apply(&mut sandbox, &team)?;
        if !names.is_empty() {
            check_mount_substrate(sandbox.shape.substrate)?;
        }
        if is_chosen {
            self.try_substrate(&sandbox).await?;
        }
        self.check_network(&sandbox.shape)?;
        self.store.create_sandbox(&sandbox).await?;
        storage.apply(&*self.store, &sandbox).await?;
        Ok(sandbox)
    }

    /// The sandboxes of a team (by id or name), or of all.
    ///
    /// # Errors
    /// When there is no such team.
    pub async fn list_sandboxes(&self, team: Option<&str>) -> Result<Vec<Sandbox>, Refusal> {
        let team = match team {
            Some(team) => Some(self.find_team(team).await?.id),
            None => None,
        };
        Ok(self.store.list_sandboxes(team.as_ref()).await?)
    }

    /// One sandbox.
    ///
    /// # Errors
    /// When there is none.
    pub async fn find_sandbox(&self, id: &str) -> Result<Sandbox, Refusal> {
        let missing = || Refusal::not_found("sandbox");
        let id = id.parse().map_err(|_| missing())?;
        self.store.find_sandbox(&id).await?.ok_or_else(missing)
    }

    /// What a sandbox is bound to: `NAME`, or `NAME:rw` if it may write.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn sandbox_storage(&self, id: &SandboxId) -> Result<Vec<String>, Refusal> {
        let bound = self.store.sandbox_storage(id).await?.into_iter();
        let shown = |(name, read_only): (String, bool)| match read_only {
            true => name,
            false => format!("{name}:rw"),
        };
        Ok(bound.map(shown).collect())
    }

    /// Changes a sandbox; the next execution runs in the new one.
    ///
    /// # Errors
    /// As for a new one, or when there is none.
    pub async fn update_sandbox(
        &self,
        id: &str,
        change: SandboxChange,
    ) -> Result<Sandbox, Refusal> {
        let missing = || Refusal::not_found("sandbox");
        let id = id.parse().map_err(|_| missing())?;
        let change = self.resolve_image(change).await?;
        let _turn = self.updating.lock().await;
        for _ in 0..UPDATE_ATTEMPTS {
            let read = self.store.sandbox_for_update(&id).await?;
            let Revisioned { row: mut sandbox, revision } = read.ok_or_else(missing)?;
            let team = self.find_team(sandbox.team.as_str()).await?;
            let storage = match &change.storage {
                Some(names) => Some(SandboxStorage::resolve(&*self.store, &team, names).await?),
                None => None,
            };
            change.clone().apply(&mut sandbox, &team)?;
            let has_storage = match &change.storage {
                Some(names) => !names.is_empty(),
                None => !self.store.sandbox_storage(&id).await?.is_empty(),
            };
            if has_storage && (change.substrate.is_some() || change.storage.is_some()) {
                check_mount_substrate(sandbox.shape.substrate)?;
            }
            if change.substrate.is_some() {
                self.try_substrate(&sandbox).await?;
            }
            if change.network.names_policy() {
                self.check_network(&sandbox.shape)?;
            }
            let update = Revisioned { row: sandbox, revision };
            let outcome = self.store.update_sandbox(&update).await?;
            if let Some(storage) = storage.filter(|_| outcome == UpdateOutcome::Done) {
                storage.apply(&*self.store, &update.row).await?;
            }
            self.key_cache.forget_all();
            match outcome {
                UpdateOutcome::Done => return Ok(update.row),
                UpdateOutcome::Stale => {}
                UpdateOutcome::Missing => return Err(missing()),
            }
        }
        Err(contended_refusal("sandbox"))
    }

    /// Refuses a substrate that cannot be used, rather than to save a sandbox that can run nothing.
    async fn try_substrate(&self, sandbox: &Sandbox) -> Result<(), Invalid> {
        let tried = self.dispatcher.try_substrate(sandbox.shape.substrate).await;
        tried.map_err(|why| Invalid::new(format!("substrate: {why}")))
    }

    /// Removes a sandbox.
    ///
    /// # Errors
    /// When there is none, or a good key is bound to it.
    pub async fn delete_sandbox(&self, id: &str) -> Result<(), Refusal> {
        let sandbox = self.find_sandbox(id).await?;
        self.store.delete_sandbox(&sandbox.id).await?;
        self.key_cache.forget_all();
        Ok(())
    }
}
