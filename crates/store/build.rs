//! Runs in: the build.
//!
//! Lists the migrations in `migrations/` as Rust code, which `sqlite/migrations.rs` includes. The
//! macro of sqlx does the same, but needs a second sqlx and a second SQLite in every build.

use std::{env, error::Error, fmt::Write as _, fs, path::Path, process::ExitCode};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=migrations");
    match list_migrations() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error={error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes an array of versions, descriptions and statements, in the order of the versions.
fn list_migrations() -> Result<(), Box<dyn Error>> {
    let directory = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("migrations");
    let mut found = Vec::new();
    for entry in fs::read_dir(&directory)? {
        let name =
            entry?.file_name().into_string().map_err(|name| format!("{name:?}: not UTF-8"))?;
        found.push(parse_name(&name).ok_or_else(|| format!("{name} is not NNNN_words.sql"))?);
    }
    found.sort();
    let mut code = String::from("[\n");
    for (version, description, name) in &found {
        let path = directory.join(name);
        writeln!(code, "({version}, {description:?}, include_str!({path:?})),")?;
    }
    code.push_str("]\n");
    Ok(fs::write(Path::new(&env::var("OUT_DIR")?).join("migrations.rs"), code)?)
}

/// Version and description in `0001_some_words.sql`.
fn parse_name(name: &str) -> Option<(i64, String, String)> {
    let (version, words) = name.strip_suffix(".sql")?.split_once('_')?;
    Some((version.parse().ok()?, words.replace('_', " "), name.to_owned()))
}
