//! Runs in: test.
//!
//! Runs a file of `console/tests` in Debian's Chromium against a server.

use std::path::{Path, PathBuf};

use crate::{host::Host, support::skip};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Whether there is a browser, its driver, and a console to look at.
pub(crate) fn has_browser() -> bool {
    let built = top().join("console/dist/index.html").exists();
    let driver = top().join("console/node_modules/playwright-core/package.json").exists();
    let browser = Path::new("/usr/bin/chromium").exists();
    (built && driver && browser)
        || skip("there is no Chromium, no Playwright or no built console: run scripts/setup-tests")
}

/// Runs one file of `console/tests` against a server.
pub(crate) async fn run_browser_tests(host: &Host, file: &str, variables: &[(&str, &str)]) {
    let mut command = tokio::process::Command::new("node");
    command
        .args(["--test", &format!("console/tests/{file}.test.mjs")])
        .current_dir(top())
        .env("TMPDIR", host.directory())
        .env("HOME", host.directory())
        .env("NO_PROXY", "127.0.0.1")
        .env("CLOCHE_URL", &host.url)
        .env("CLOCHE_API_KEY", &host.key)
        .env("CLOCHE_ADMIN_TOKEN", &host.admin)
        .envs(variables.iter().copied())
        .kill_on_drop(true);
    if let Ok(pictures) = std::env::var("CLOCHE_SCREENSHOTS") {
        let directory = top().join(pictures);
        std::fs::create_dir_all(&directory).unwrap();
        command.env("CLOCHE_SCREENSHOTS", directory);
    }
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", host.said("log"));
}
