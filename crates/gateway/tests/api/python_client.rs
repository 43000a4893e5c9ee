//! The public Python client, unchanged, against this server. It needs a virtual environment with
//! `tests/client/requirements.txt` in `.venv`; without one this says so and is skipped.

use std::path::Path;

use crate::host::Host;

#[tokio::test(flavor = "multi_thread")]
async fn the_public_client_works_unchanged() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv/bin/python");
    if !python.exists() {
        eprintln!("SKIPPED: there is no .venv with the packages of tests/client/requirements.txt");
        return;
    }
    let host = Host::start().await;
    let status = tokio::process::Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/client"])
        .current_dir(root)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("CLOCHE_URL", format!("http://{}", host.address))
        .env("CLOCHE_API_KEY", &host.key)
        .env("CLOCHE_ADMIN_TOKEN", &host.admin)
        .status()
        .await
        .unwrap();
    assert!(status.success());
}
