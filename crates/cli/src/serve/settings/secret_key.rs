//! Runs in: server (no capabilities). The source of the key that seals the secrets in the database.

use std::path::PathBuf;

use clap::Args;
use cloche_model::Secret;
use cloche_store::KeySource;

/// The variable that contains the key itself. It is not a flag, because every user can read
/// arguments. The spawner starts with an empty environment, so neither the spawner nor a cell gets
/// it.
const KEY: &str = "CLOCHE_SECRET_KEY";

/// The key file as a flag.
#[derive(Args, Default)]
pub(in crate::serve) struct SecretKeyArguments {
    /// The file with the key that seals secrets in the database, created at the first start
    /// [default: secret.key in the data directory]. The key itself can be given in
    /// CLOCHE_SECRET_KEY instead.
    #[arg(long, env = "CLOCHE_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
}

/// Chooses the key source: the environment, then the flag, then the settings file. A named file is
/// read here, before the server becomes its own user and sees only its data directory.
pub(super) fn choose_key_source(
    arguments: SecretKeyArguments,
    file: Option<PathBuf>,
) -> Option<KeySource> {
    from_environment().or_else(|| arguments.secret_key_file.or(file).map(read_key_file))
}

fn read_key_file(path: PathBuf) -> KeySource {
    match std::fs::read_to_string(&path) {
        Ok(key) => KeySource::Given(Secret::new(key.trim().to_owned())),
        // The store creates it, or reports why it cannot.
        Err(_) => KeySource::File(path),
    }
}

/// The key from the environment.
pub(crate) fn from_environment() -> Option<KeySource> {
    let key = std::env::var(KEY).ok().filter(|key| !key.is_empty());
    key.map(|key| KeySource::Given(Secret::new(key)))
}
