//! Runs in: server (no capabilities).
//!
//! The first start: a team, a sandbox, a key and an admin token, written where only the owner of
//! the data directory can read them.

use std::{io, path::Path};

use cloche_model::{Secret, TeamPlan};
use serde_json::{Value, json};
use tokio::{fs, io::AsyncWriteExt};

use super::{ADMIN_TOKEN, KeyDraft, SandboxDraft, TeamDraft, Tenancy};
use crate::{
    Refusal,
    secrets::{self, ADMIN_PREFIX},
};

/// The file in the data directory.
const FILE: &str = "bootstrap.json";

/// What the file holds, to be shown to a person.
#[derive(Debug)]
pub struct BootstrapFile {
    /// Where the server is.
    pub url: String,
    /// A key of the team `default`.
    pub api_key: Secret,
    /// The token for the admin API.
    pub admin_token: Secret,
    /// Whether this start made them.
    pub first_start: bool,
}

impl Tenancy {
    /// Makes the first team, sandbox, key and token if there are none yet, and keeps the address in
    /// `bootstrap.json` up to date. `None` if the file was taken away since.
    ///
    /// # Errors
    /// When the store or the file cannot be written.
    pub async fn ensure_bootstrap(
        &self,
        data_dir: &Path,
        url: &str,
    ) -> Result<Option<BootstrapFile>, Refusal> {
        let path = data_dir.join(FILE);
        let made = if self.store.read_setting(ADMIN_TOKEN).await?.is_none() {
            Some(self.create_first_tenant(url).await?)
        } else {
            read_bootstrap(&path).await.map_err(Refusal::internal)?
        };
        let Some(bootstrap) = made else {
            tracing::warn!(path = %path.display(), "there is no bootstrap file to keep up to date");
            return Ok(None);
        };
        let bootstrap = BootstrapFile { url: url.to_owned(), ..bootstrap };
        write_bootstrap(&path, &bootstrap).await.map_err(Refusal::internal)?;
        if bootstrap.first_start {
            // Last, so that a start that was cut short before the file was written begins again.
            let digest = secrets::digest_secret(bootstrap.admin_token.reveal());
            self.store.set_setting(ADMIN_TOKEN, &digest).await?;
        }
        Ok(Some(bootstrap))
    }

    /// Replaces the admin token, also in `bootstrap.json` if it is there. The old one is refused
    /// from now on.
    ///
    /// # Errors
    /// When the store or the file cannot be written.
    pub async fn rotate_admin_token(&self, data_dir: &Path) -> Result<Secret, Refusal> {
        let path = data_dir.join(FILE);
        let token = secrets::generate_secret(ADMIN_PREFIX)?;
        let known = read_bootstrap(&path).await.map_err(Refusal::internal)?;
        let digest = secrets::digest_secret(token.reveal());
        self.store.set_setting(ADMIN_TOKEN, &digest).await?;
        if let Some(known) = known {
            let bootstrap = BootstrapFile { admin_token: token.clone(), ..known };
            write_bootstrap(&path, &bootstrap).await.map_err(Refusal::internal)?;
        }
        tracing::warn!("the admin token was replaced");
        Ok(token)
    }

    async fn create_first_tenant(&self, url: &str) -> Result<BootstrapFile, Refusal> {
        const NAME: &str = "default";
        let team = match self.store.find_team(NAME).await? {
            Some(team) => team,
            None => self.create_team(TeamDraft::new(NAME, TeamPlan::Enterprise)).await?,
        };
        let sandboxes = self.list_sandboxes(Some(team.id.as_str())).await?;
        let sandbox = match sandboxes.into_iter().find(|sandbox| sandbox.name == NAME) {
            Some(sandbox) => sandbox,
            None => self.create_sandbox(SandboxDraft::new(team.id.as_str(), NAME)).await?,
        };
        let draft = KeyDraft::new(team.id.as_str(), sandbox.id.as_str(), NAME);
        let key = self.create_key(draft).await?;
        Ok(BootstrapFile {
            url: url.to_owned(),
            api_key: key.secret,
            admin_token: secrets::generate_secret(ADMIN_PREFIX)?,
            first_start: true,
        })
    }
}

async fn read_bootstrap(path: &Path) -> io::Result<Option<BootstrapFile>> {
    let bytes = match fs::read(path).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let value: Value = serde_json::from_slice(&bytes)?;
    let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
    Ok(Some(BootstrapFile {
        url: text("url"),
        api_key: Secret::new(text("api_key")),
        admin_token: Secret::new(text("admin_token")),
        first_start: false,
    }))
}

/// Writes it whole or not at all, readable by the owner only from the first byte on.
async fn write_bootstrap(path: &Path, bootstrap: &BootstrapFile) -> io::Result<()> {
    let text = json!({
        "url": bootstrap.url,
        "api_key": bootstrap.api_key.reveal(),
        "admin_token": bootstrap.admin_token.reveal(),
    });
    let draft = path.with_extension("json.new");
    match fs::remove_file(&draft).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&draft).await?;
    file.write_all(format!("{text:#}\n").as_bytes()).await?;
    file.sync_all().await?;
    fs::rename(&draft, path).await
}
