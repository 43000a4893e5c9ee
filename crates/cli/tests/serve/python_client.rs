//! The public Python client, unchanged, against the real binary: itself, and its tools for agent
//! frameworks. It needs virtual environments in `.venv` and, for CrewAI, in `.venv-crewai`, which
//! `scripts/setup-tests` creates.

use std::path::{Path, PathBuf};

use crate::{host::Host, support::skip};

/// The top directory of the project.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A program of the virtual environment of most tests.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    tool_of(".venv", name)
}

/// A program of a virtual environment, if it was created.
pub(crate) fn tool_of(environment: &str, name: &str) -> Option<PathBuf> {
    let path = top().join(environment).join("bin").join(name);
    if path.exists() {
        return Some(path);
    }
    skip(&format!("there is no {name} in {environment}: run scripts/setup-tests"));
    None
}

/// Runs Python tests against a new server. Returns the report; empty if no sandbox can be built.
async fn run_tests(python: PathBuf, arguments: &[&str]) -> String {
    let Some(host) = Host::start().await else { return String::new() };
    let output = tokio::process::Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args(arguments)
        .current_dir(top())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        // The packages must not talk to anything but the server.
        .env("CREWAI_DISABLE_TELEMETRY", "true")
        .env("OTEL_SDK_DISABLED", "true")
        .env("OPENAI_AGENTS_DISABLE_TRACING", "1")
        .env("HOME", host.directory())
        .env("CLOCHE_URL", &host.url)
        .env("CLOCHE_API_KEY", &host.key)
        .env("CLOCHE_ADMIN_TOKEN", &host.admin)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", host.said("log"));
    said.into_owned()
}

#[tokio::test]
async fn the_public_client_works_unchanged() {
    let Some(python) = tool("python") else { return };
    let others = ["agent", "crew", "tools"].map(|other| format!("--ignore=tests/client/{other}"));
    let others = others.each_ref().map(String::as_str);
    let arguments = [&["tests/client"], &others[..]].concat();
    println!("{}", run_tests(python, &arguments).await);
}

#[tokio::test]
async fn the_public_client_is_a_tool_of_crewai() {
    let Some(python) = tool_of(".venv-crewai", "python") else { return };
    println!("{}", run_tests(python, &["tests/client/crew"]).await);
}
