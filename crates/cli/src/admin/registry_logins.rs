//! Runs in: the commands that ask a server.
//!
//! The logins of Docker and Podman: their configuration files and their credential helpers.

use std::{
    env, fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{AdminError, Fields, put_field};

/// The key of the default registry in these files.
const DOCKER_KEY: &str = "https://index.docker.io/v1/";
/// The user name with which a helper gives an identity token.
const TOKEN_USER: &str = "<token>";

/// The fields of a pull for this registry: a name and a password, an identity token, or nothing.
pub(super) fn find_credentials(registry: &str, file: Option<&Path>) -> Result<Fields, AdminError> {
    let files = match file {
        Some(file) => vec![file.to_owned()],
        None => default_files(),
    };
    for path in files {
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && file.is_none() => continue,
            Err(source) => return Err(AdminError::File { path, source }),
            Ok(text) => text,
        };
        let config: Value = serde_json::from_slice(&text).map_err(|error| AdminError::File {
            path: path.clone(),
            source: io::Error::new(io::ErrorKind::InvalidData, error.to_string()),
        })?;
        let found = read_config(&config, registry);
        let found = found.map_err(|source| AdminError::File { path, source })?;
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(Fields::new())
}

/// The files that these tools write, in the order in which Podman reads them.
fn default_files() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = variable("HOME");
    let in_home = |path: &str| home.as_ref().map(|home| home.join(path));
    let docker = variable("DOCKER_CONFIG").map(|directory| directory.join("config.json"));
    let run = variable("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json"));
    let config = variable("XDG_CONFIG_HOME").map(|it| it.join("containers/auth.json"));
    [
        variable("REGISTRY_AUTH_FILE"),
        run,
        config.or_else(|| in_home(".config/containers/auth.json")),
        docker.or_else(|| in_home(".docker/config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn read_config(config: &Value, registry: &str) -> io::Result<Fields> {
    let keys = match registry {
        "docker.io" => vec![DOCKER_KEY.to_owned(), "docker.io".to_owned()],
        other => vec![other.to_owned(), format!("https://{other}"), format!("https://{other}/v1/")],
    };
    for key in &keys {
        if let Some(helper) = config["credHelpers"][key].as_str() {
            return ask_helper(helper, key);
        }
    }
    for key in &keys {
        let entry = &config["auths"][key];
        if let Some(token) = entry["identitytoken"].as_str().filter(|token| !token.is_empty()) {
            return Ok(token_fields(token));
        }
        if let Some(pair) = entry["auth"].as_str().filter(|pair| !pair.is_empty()) {
            return decode_pair(pair);
        }
    }
    match config["credsStore"].as_str() {
        Some(helper) => ask_helper(helper, &keys[0]),
        None => Ok(Fields::new()),
    }
}

fn decode_pair(pair: &str) -> io::Result<Fields> {
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a login is malformed");
    let decoded = STANDARD.decode(pair.trim()).map_err(|_| malformed())?;
    let decoded = String::from_utf8(decoded).map_err(|_| malformed())?;
    let (username, password) = decoded.split_once(':').ok_or_else(malformed)?;
    Ok(password_fields(username, password.trim_end_matches('\0')))
}

/// Runs a credential helper, which answers with JSON. A registry that it does not know has no login.
fn ask_helper(helper: &str, registry: &str) -> io::Result<Fields> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if helper.is_empty() || !helper.chars().all(plain) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a helper's name is malformed"));
    }
    let mut child = Command::new(format!("docker-credential-{helper}"))
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(registry.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Ok(Fields::new());
    }
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Ok(match (answer["Username"].as_str(), answer["Secret"].as_str()) {
        (Some(TOKEN_USER), Some(token)) => token_fields(token),
        (Some(username), Some(password)) => password_fields(username, password),
        _ => Fields::new(),
    })
}

fn password_fields(username: &str, password: &str) -> Fields {
    let mut fields = Fields::new();
    put_field(&mut fields, "username", Some(username));
    put_field(&mut fields, "password", Some(password));
    fields
}

fn token_fields(token: &str) -> Fields {
    let mut fields = Fields::new();
    put_field(&mut fields, "identity_token", Some(token));
    fields
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_login_is_found_by_its_registry() {
        let pair = STANDARD.encode("me:se:cret");
        let config = json!({"auths": {
            "registry.example:5000": {"auth": pair},
            DOCKER_KEY: {"identitytoken": "t"},
        }});
        let found = read_config(&config, "registry.example:5000").unwrap();
        assert_eq!(found["username"], "me");
        assert_eq!(found["password"], "se:cret");
        assert_eq!(read_config(&config, "docker.io").unwrap()["identity_token"], "t");
        assert!(read_config(&config, "other.example").unwrap().is_empty());
        let malformed = json!({"auths": {"a.b": {"auth": "%%"}}});
        assert!(read_config(&malformed, "a.b").is_err());
        assert!(read_config(&json!({"credsStore": "../x"}), "a.b").is_err());
    }
}
