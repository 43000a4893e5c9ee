//! The API description against the real binary: generated requests, and every response checked.

use crate::{host::Host, python_client::tool};

/// No schema says that a day is a day of the calendar, or that the last one is not before the first,
/// nor which storage there is, what an address of mail is, or that someone signs in with a token or
/// with a name. No body is the body of an empty file.
const CONFIG: &str = r#"
[[operations]]
include-path-regex = "usage|members|api/session$|sandbox/execute$|sandboxes|bind$"
checks.positive_data_acceptance.enabled = false

[[operations]]
include-path-regex = "threads/.*/files/"
checks.negative_data_rejection.enabled = false
"#;

async fn check(host: &Host, token: &str, paths: &str) {
    let Some(schemathesis) = tool("schemathesis") else { return };
    let config = host.directory().join("schemathesis.toml");
    std::fs::write(&config, CONFIG).unwrap();
    let output = tokio::process::Command::new(schemathesis)
        .arg("--config-file")
        .arg(config)
        .args(["run", &format!("{}/openapi.json", host.url)])
        .args(["--include-path-regex", paths])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--max-examples", "20", "--seed", "1", "--generation-database", "none"])
        .current_dir(host.directory())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", host.said("log"));
}

#[tokio::test]
async fn the_public_api_conforms_to_its_description() {
    let Some(host) = Host::start().await else { return };
    // No schema describes the tar of an image, so almost any body would be refused.
    check(&host, &host.key, "^/(?!v1/admin|v1/threads/[^/]+/import)").await;
}

#[tokio::test]
async fn the_admin_api_conforms_to_its_description() {
    let Some(host) = Host::start().await else { return };
    // The same is true of the import of an image; a pull needs a registry, a connection a bucket.
    // A new admin token would lock the check out.
    check(&host, &host.admin, "^/v1/admin/(?!images/(import|pull)|storage|token)").await;
}
