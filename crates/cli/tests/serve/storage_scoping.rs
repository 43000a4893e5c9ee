//! Runs in: test. What programs see at `/data`: narrowed by connection, binding and request, against
//! a real S3 server and on volumes.

use serde_json::{Value, json};

use crate::{
    host::{Host, trace_id},
    moto::Moto,
    storage_connections::{BUCKET, connect, operator_json, put_object},
    volumes::{download, upload},
};

/// Runs a Bash program with these paths. Returns the status and the answer.
async fn bash(host: &Host, code: &str, sub_paths: &[&str]) -> (u16, Value) {
    host.run(json!({"language": "bash", "code": code, "sub_paths": sub_paths})).await
}

/// The same, which must succeed. Returns what it printed.
async fn printed(host: &Host, code: &str, sub_paths: &[&str]) -> String {
    let (status, answer) = bash(host, code, sub_paths).await;
    assert_eq!((status, &answer["exit_code"]), (200, &json!(0)), "{answer} {}", host.said("log"));
    answer["stdout"].as_str().unwrap().to_owned()
}

/// A server with a connection `company-data` that is bound to the default sandbox.
async fn connected(moto: &Moto, create: &[&str], bind: &[&str]) -> Option<Host> {
    let host = Host::start().await?;
    for (key, content) in [
        ("reports/q1-2026/sales.csv", "region,amount\nnorth,3\nsouth,4\n"),
        ("reports/q2-2026/sales.csv", "region,amount\nnorth,5\n"),
        ("reports/q1-2026x/other", "beside"),
        ("secret/plan", "not for you"),
    ] {
        put_object(moto, key, content).await;
    }
    connect(&host, moto, "company-data", create);
    let words = ["storage", "bind", "company-data", "--sandbox", "default"];
    operator_json(&host, &[&words[..], bind].concat(), "");
    Some(host)
}

#[tokio::test]
async fn a_program_sees_a_bucket_as_far_as_every_level_allows() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = connected(&moto, &[], &[]).await else { return };
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "reports\nsecret\n");
    let q1 = "/data/company-data/reports/q1-2026";
    let code = "cd /data/company-data; ls -A; cat sales.csv | head -1; ls .. ";
    assert_eq!(printed(&host, code, &[q1]).await, "sales.csv\nregion,amount\ncompany-data\n");
    for way in ["../secret/plan", "../../secret/plan", "..%2fsecret/plan", "//secret/plan"] {
        let code = format!("cat /data/company-data/{way} 2>/dev/null || echo no");
        assert_eq!(printed(&host, &code, &[q1]).await, "no\n", "{way}");
    }
    // It is read-only by default.
    let code = "echo x 2>/dev/null > /data/company-data/new || echo refused";
    assert_eq!(printed(&host, code, &[q1]).await, "refused\n");
    let bind = ["storage", "bind", "company-data", "--sandbox", "default"];
    operator_json(&host, &[&bind[..], &["--path", "reports", "--read-write"]].concat(), "");
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "q1-2026\nq1-2026x\nq2-2026\n");
    printed(&host, "echo made > /data/company-data/made.txt", &[q1]).await;
    // Another execution, which sees more of the bucket, finds it where it belongs.
    let code = "cat /data/company-data/q1-2026/made.txt";
    assert_eq!(printed(&host, code, &[]).await, "made\n");
    for (path, sentence) in [
        ("/data/company-data/secret", "is not within what this key may use"),
        ("/data/company-data/report", "is not within what this key may use"),
        ("/data/company-data/Reports", "is not within what this key may use"),
        ("/data/other/reports", "no storage is mounted at /data/other"),
        ("/data/company-data/reports/../secret", "not allowed"),
    ] {
        let (status, answer) = bash(&host, "echo ran", &[path]).await;
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{answer}");
        assert!(answer["message"].as_str().unwrap().contains(sentence), "{answer}");
    }
    operator_json(&host, &["storage", "unbind", "company-data", "--sandbox", "default"], "");
    assert_eq!(printed(&host, "ls /data 2>/dev/null | wc -l", &[]).await, "0\n");
}

#[tokio::test]
async fn the_prefix_of_a_connection_and_the_path_of_a_key_only_narrow() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = connected(&moto, &["--prefix", "reports"], &[]).await else { return };
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "q1-2026\nq1-2026x\nq2-2026\n");
    let key = operator_json(&host, &["key", "create", "narrow"], "");
    let bind = ["storage", "bind", "company-data", "--key", key["id"].as_str().unwrap()];
    operator_json(&host, &[&bind[..], &["--path", "reports/q1-2026"]].concat(), "");
    let host = host.with_key(key["key"].as_str().unwrap());
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "sales.csv\n");
    for wider in ["reports", "reports/q2-2026", "reports/q1-2026x", "secret", "q1-2026"] {
        let path = format!("/data/company-data/{wider}");
        assert_eq!(bash(&host, "echo ran", &[&path]).await.0, 400, "{wider}");
    }
}

/// Spellings of the parent directory, and others that some software reads as one.
const DOTS: [&str; 31] = [
    "..",
    "%2e%2e",
    "%2E%2E",
    ".%2e",
    "%2e.",
    "%252e%252e",
    "\u{2025}",
    "\u{2024}\u{2024}",
    "\u{ff0e}\u{ff0e}",
    "\u{fe52}\u{fe52}",
    "\u{3002}\u{3002}",
    "..\u{200b}",
    "\u{200b}..",
    ".\u{200d}.",
    "\u{202e}..",
    "..;",
    "..\0",
    "\0..",
    "..\t",
    ".. ",
    " ..",
    "...",
    "....//",
    ".",
    "..\\",
    "\\..",
    "%c0%ae%c0%ae",
    "\\x2e\\x2e",
    "\\u002e\\u002e",
    "\u{feff}..",
    "..\n",
];
/// Spellings of a separator.
const SLASHES: [&str; 10] =
    ["/", "//", "\\", "%2f", "%5c", "%252f", "\u{2215}", "\u{2044}", "\u{ff0f}", "\u{29f8}"];
/// Whole paths that are wrong in another way.
const OTHERS: [&str; 15] = [
    "/data/company-data/../company-data/secret",
    "/data//company-data/secret",
    "//data/company-data/reports/q1-2026",
    "data/company-data/reports/q1-2026",
    "/data/company-data/reports//q1-2026",
    "/data/company-data//reports",
    "/data/COMPANY-DATA/reports",
    "/Data/company-data/reports",
    "/data/company-data",
    "/data/company-data/",
    "/data/company-data/REPORTS/q1-2026",
    "/data/company-data/reports.",
    "file:///data/company-data/reports",
    "/data/company-data/report",
    "/data/company-data/reportsx",
];

/// A thousand spellings of a way out of `reports`, none of them an allowed path below it.
fn traversal_spellings() -> Vec<String> {
    let mut found: Vec<String> = OTHERS.map(str::to_owned).to_vec();
    for dot in DOTS {
        for slash in SLASHES {
            for end in ["secret", "secret/plan", "secret.", "secret ", ""] {
                found.push(format!("/data/company-data/reports/{dot}{slash}{end}"));
                found.push(format!("/data/company-data/{dot}{slash}{end}"));
            }
        }
    }
    found
}

#[tokio::test]
async fn a_thousand_spellings_of_traversal_are_refused() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = connected(&moto, &[], &["--path", "reports"]).await else { return };
    let spellings = traversal_spellings();
    assert!(spellings.len() >= 1000, "{}", spellings.len());
    for path in spellings {
        let (status, answer) = bash(&host, "cat /data/company-data/plan", &[&path]).await;
        assert_eq!((status, &answer["error"]), (400, &json!("validation_error")), "{path:?}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.starts_with("sub_paths"), "{path:?}: {message}");
    }
    // The good spelling of the same is accepted, so the refusals are not for another reason.
    let good = "/data/company-data/reports/q1-2026/";
    assert_eq!(printed(&host, "ls /data/company-data", &[good]).await, "sales.csv\n");
}

#[tokio::test]
async fn a_volume_is_shared_by_the_executions_of_a_team_and_counted() {
    let Some(host) = Host::start().await else { return };
    operator_json(&host, &["volume", "create", "work", "--quota", "4M"], "");
    let bind = ["storage", "bind", "work", "--sandbox", "default", "--read-write"];
    operator_json(&host, &bind, "");
    assert_eq!(upload(&host, "work", "in/a.txt", b"uploaded".to_vec()).await, 200);
    let code = "cat /data/work/in/a.txt; mkdir -p /data/work/out; echo done > /data/work/out/b";
    let body = json!({"language": "bash", "code": code});
    // The program ends before its mount server has reported, and every byte is counted each time.
    const RUNS: u64 = 30;
    for _ in 0..RUNS {
        let response = host.execute(&body).send().await.unwrap();
        let trace = trace_id(&response);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["stdout"], "uploaded", "{answer} {}", host.said("log"));
        let record = host.record(&trace).await;
        let mount = &record["mounts"][0];
        assert_eq!((&mount["name"], &mount["read_only"]), (&json!("work"), &json!(false)));
        let bytes = [&mount["bytes_read"], &mount["bytes_written"]];
        assert_eq!(bytes, [&json!(8), &json!(5)], "{mount} {}", host.said("log"));
    }
    assert_eq!(download(&host, "work", "out/b").await.unwrap(), b"done\n");
    assert_eq!(printed(&host, "cat /data/work/out/b", &[]).await, "done\n");
    // Only a part of it for one request.
    let code = "ls /data/work; cat /data/work/b";
    assert_eq!(printed(&host, code, &["/data/work/out"]).await, "b\ndone\n");
    // The usage and the metrics have the bytes.
    let (_, usage) = host.get("/v1/usage").await;
    assert_eq!(usage["storage"][0]["name"], "work");
    assert!(usage["storage"][0]["bytes_read"].as_u64().unwrap() >= 8 * RUNS, "{usage}");
    assert_eq!(usage["storage"][0]["bytes_written"], 5 * RUNS, "{usage}");
    let metrics = host.metrics().await;
    assert!(metrics.contains("cloche_team_month_storage_bytes{team="), "{metrics}");
    // The quota holds inside, too.
    let code = "head -c 8M /dev/zero > /data/work/big 2>/dev/null || echo full; rm /data/work/big";
    assert_eq!(printed(&host, code, &[]).await, "full\n");
}

#[tokio::test]
async fn a_rotated_credential_is_used_without_a_restart_and_a_broken_mount_fails_the_run() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = connected(&moto, &[], &[]).await else { return };
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "reports\nsecret\n");
    // The key id of a request is what the store sees; another one is used from the next run on.
    let words = ["storage", "set", "company-data", "--access-key-id", "AKIANEXT"];
    operator_json(&host, &[&words[..], &["--secret-file", "-"]].concat(), "another-secret");
    assert_eq!(printed(&host, "ls /data/company-data", &[]).await, "reports\nsecret\n");
    // A connection that cannot be used any more ends a run before any code. The error names the mount
    // and nothing of the store.
    let words = ["storage", "set", "company-data", "--no-check", "--bucket", "no-such-bucket"];
    operator_json(&host, &words, "");
    let (_, answer) = bash(&host, "echo ran; ls /data/company-data", &[]).await;
    let sentence = "storage mount \"company-data\" failed: the bucket does not exist";
    assert_eq!(
        (&answer["success"], &answer["error"]),
        (&json!(false), &json!(sentence)),
        "{answer}"
    );
    assert_eq!(answer["stdout"], "", "{answer}");
    drop(moto);
    // Credentials that have not been used yet: an answer to others says nothing of them.
    let words = ["storage", "set", "company-data", "--no-check", "--bucket", BUCKET];
    let access = ["--access-key-id", "AKIALAST", "--secret-file", "-"];
    operator_json(&host, &[&words[..], &access].concat(), "a-third-secret");
    let (_, answer) = bash(&host, "echo ran; ls /data/company-data", &[]).await;
    let sentence = "storage mount \"company-data\" failed: the storage could not be reached";
    assert_eq!((&answer["stdout"], &answer["error"]), (&json!(""), &json!(sentence)), "{answer}");
}
