//! Runs in: server (no capabilities).
//!
//! Bindings: which sandboxes and keys may use a connection or volume, how far, and whether they may
//! write.

use cloche_model::{
    BindingUser, BoundStorage, ErrorCode, Invalid, KeyPrefix, StorageBinding, StorageSource,
    Substrate, Team,
};

use super::StorageSources;
use crate::{BindingTarget, Refusal};

/// A binding, with a name of its user for people.
#[derive(Clone, Debug)]
pub struct NamedBinding {
    /// The binding.
    pub binding: StorageBinding,
    /// `sandbox NAME` or `key NAME`.
    pub user: String,
}

impl StorageSources {
    /// Lets a sandbox or key use a connection or volume. A binding that exists is replaced.
    ///
    /// # Errors
    /// When there is no such user in the team, or the path is not within the connection's.
    pub async fn bind(
        &self,
        source: &StorageSource,
        target: BindingTarget,
        path: KeyPrefix,
        read_only: bool,
    ) -> Result<(), Refusal> {
        let user = self.find_user(source, target).await?;
        if let BindingUser::Sandbox(id) = &user
            && let Some(sandbox) = self.store.find_sandbox(id).await?
        {
            check_mount_substrate(sandbox.shape.substrate)?;
        }
        let binding = StorageBinding { storage: source.id.clone(), user, path, read_only };
        if BoundStorage::new(source.clone(), std::slice::from_ref(&binding)).scope.is_none() {
            let message = format!("path: {:?} is not within the prefix", binding.path.as_str());
            return Err(Invalid::new(format!("{message} of {:?}", source.name)).into());
        }
        self.store.bind_source(&binding).await?;
        self.key_cache.forget_all();
        Ok(())
    }

    /// Removes a binding; the next execution does not have the mount.
    ///
    /// # Errors
    /// When there is none.
    pub async fn unbind(
        &self,
        source: &StorageSource,
        target: BindingTarget,
    ) -> Result<(), Refusal> {
        let user = self.find_user(source, target).await?;
        let removed = self.store.unbind_source(&source.id, &user).await?;
        self.key_cache.forget_all();
        match removed {
            true => Ok(()),
            false => Err(Refusal::not_found("binding")),
        }
    }

    /// The bindings of a connection or volume.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn list_bindings(
        &self,
        source: &StorageSource,
    ) -> Result<Vec<NamedBinding>, Refusal> {
        let bindings = self.store.list_bindings(&source.id).await?;
        let named = bindings.into_iter();
        Ok(named.map(|(binding, user)| NamedBinding { binding, user }).collect())
    }

    async fn find_user(
        &self,
        source: &StorageSource,
        target: BindingTarget,
    ) -> Result<BindingUser, Refusal> {
        match target {
            BindingTarget::Sandbox(id_or_name) => {
                let sandboxes = self.store.list_sandboxes(Some(&source.team)).await?;
                let found = sandboxes
                    .into_iter()
                    .find(|one| one.id.as_str() == id_or_name || one.name == id_or_name);
                let missing = || Refusal::not_found("sandbox");
                Ok(BindingUser::Sandbox(found.ok_or_else(missing)?.id))
            }
            BindingTarget::Key(id) => {
                let missing = || Refusal::not_found("key");
                let id = id.parse().map_err(|_| missing())?;
                let key = self.store.find_key(&id).await?;
                let key = key.filter(|key| key.team == source.team && key.revoked_at.is_none());
                Ok(BindingUser::Key(key.ok_or_else(missing)?.id))
            }
        }
    }
}

/// Refuses storage in a sandbox whose cells cannot have it.
pub(crate) fn check_mount_substrate(substrate: Substrate) -> Result<(), Invalid> {
    match substrate {
        Substrate::Native => Ok(()),
        Substrate::Oci(_) => Err(Invalid::new(format!(
            "storage: storage mounts need the substrate native, and this sandbox has {substrate}"
        ))),
    }
}

/// What a sandbox is bound to, as its settings name it: `NAME`, or `NAME:rw` if it may write.
pub(crate) struct SandboxStorage(Vec<(StorageSource, bool)>);

impl SandboxStorage {
    /// Finds what the names mean in a team.
    pub(crate) async fn resolve(
        store: &dyn cloche_store::Store,
        team: &Team,
        names: &[String],
    ) -> Result<Self, Refusal> {
        let mut found = Vec::with_capacity(names.len());
        for entry in names {
            let (name, is_writable) = match entry.split_once(':') {
                None => (entry.as_str(), false),
                Some((name, "ro")) => (name, false),
                Some((name, "rw")) => (name, true),
                Some(_) => {
                    return Err(Invalid::new(format!(
                        "storage: {entry:?} must be NAME, NAME:ro or NAME:rw"
                    ))
                    .into());
                }
            };
            let source = store.find_source_by_name(&team.id, name).await?;
            let source = source.ok_or_else(|| {
                Invalid::new(format!(
                    "storage: the team has no connection or volume named {name:?}; create it first"
                ))
            })?;
            if found.iter().any(|(other, _): &(StorageSource, bool)| other.id == source.id) {
                return Err(Invalid::new(format!("storage: {name:?} is named twice")).into());
            }
            found.push((source, is_writable));
        }
        Ok(Self(found))
    }

    /// Binds the sandbox to these and to nothing else. A binding that stays keeps its path.
    pub(crate) async fn apply(
        self,
        store: &dyn cloche_store::Store,
        sandbox: &cloche_model::Sandbox,
    ) -> Result<(), Refusal> {
        let user = BindingUser::Sandbox(sandbox.id.clone());
        for source in store.list_sources(Some(&sandbox.team)).await? {
            let now = store.list_bindings(&source.id).await?;
            let now = now.into_iter().map(|(binding, _)| binding).find(|one| one.user == user);
            let wanted = self.0.iter().find(|(wanted, _)| wanted.id == source.id);
            match (now, wanted) {
                (None, None) => {}
                (Some(_), None) => drop(store.unbind_source(&source.id, &user).await?),
                (now, Some((_, is_writable))) => {
                    let path = now.map(|binding| binding.path).unwrap_or_default();
                    let (storage, user) = (source.id.clone(), user.clone());
                    let read_only = !is_writable;
                    store.bind_source(&StorageBinding { storage, user, path, read_only }).await?;
                }
            }
        }
        Ok(())
    }
}

/// The refusal while something uses a connection or volume.
pub(super) fn in_use_refusal(
    removal: cloche_store::SourceRemoval,
    what: &'static str,
    name: &str,
) -> Result<(), Refusal> {
    use cloche_store::SourceRemoval;
    match removal {
        SourceRemoval::Done => Ok(()),
        SourceRemoval::Missing => Err(Refusal::not_found(what)),
        SourceRemoval::InUse(users) => {
            let users = users.join(", ");
            let message = format!("the {what} {name:?} is used by {users}; unbind it there first");
            Err(Refusal::new(ErrorCode::Conflict, message))
        }
    }
}
