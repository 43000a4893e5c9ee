//! Interpreters that are found by looking.

use serde_json::json;

use crate::support::{Store, TarBytes, TestImage};

/// A program of this host, and the path of its loader.
fn program() -> (Vec<u8>, String) {
    let bytes = std::fs::read("/bin/ls").unwrap();
    let at = bytes.windows(8).position(|w| w.starts_with(b"/lib") && w.contains(&b'/')).unwrap();
    let end = bytes[at..].iter().position(|&byte| byte == 0).unwrap();
    (bytes[..8192].to_vec(), String::from_utf8(bytes[at..at + end].to_vec()).unwrap())
}

#[tokio::test]
async fn interpreters_are_found_through_links_of_the_image() {
    let (elf, loader) = program();
    let base = TarBytes::default()
        .link("bin", "usr/bin")
        .link("lib64", "usr/lib64")
        .link("lib", "usr/lib")
        .file(&loader.trim_start_matches('/').replace("lib", "usr/lib"), b"loader")
        .file("usr/bin/python3.9", &elf)
        .link("usr/bin/python3", "python3.9")
        .link("etc/alternatives/node", "/opt/node-v25/bin/node")
        .link("usr/bin/node", "/etc/alternatives/node")
        .file("opt/node-v25/bin/node", &elf)
        .file(
            "opt/node-v25/include/node/node_version.h",
            b"#define NODE_MAJOR_VERSION 25\n#define NODE_MINOR_VERSION 9\n\
              #define NODE_PATCH_VERSION 0\n",
        )
        .file("usr/bin/bash", &elf)
        .link("usr/bin/sh", "dash")
        .file("usr/bin/dash", &elf)
        .link("usr/bin/perl", "/nowhere")
        .file("usr/bin/ruby", b"#!/bin/sh\nexec rbenv ruby")
        .with_mode("usr/bin/php", 0o644, &elf)
        .file("usr/lib/go-1.22/bin/go", &elf)
        .end();
    // A newer layer has a virtual environment, which is first in PATH.
    let venv = TarBytes::default()
        .file("usr/local/bin/python3.14", &elf)
        .link("venv/bin/python", "/usr/local/bin/python3.14")
        .end();
    let mut image = TestImage::new(&[base, venv]);
    image.config["config"]["Env"] = json!(["PATH=/venv/bin:/usr/local/bin:/usr/bin:/bin"]);
    let store = Store::new().await;
    let new = store.import(image.layout()).await.unwrap();
    let table = &new.image.interpreters;
    let found: Vec<(&str, &str, Option<&str>)> = table
        .found
        .iter()
        .map(|it| (&it.language[..], &it.path[..], it.version.as_deref()))
        .collect();
    assert_eq!(
        found,
        [
            ("bash", "/usr/bin/bash", None),
            ("go", "/usr/lib/go-1.22/bin/go", Some("1.22")),
            ("node", "/usr/bin/node", Some("25.9.0")),
            ("python", "/venv/bin/python", Some("3.14")),
            ("sh", "/usr/bin/sh", None),
        ]
    );
    assert_eq!(table.get("go").unwrap().arguments, ["run"]);
    let reason = |language: &str| {
        let refused = table.refused.iter().find(|it| it.language == language);
        refused.unwrap_or_else(|| panic!("{language}")).reason.clone()
    };
    assert!(reason("perl").contains("does not exist"));
    assert!(reason("ruby").contains("script that starts another program: /bin/sh"));
    assert!(reason("php").contains("not executable"));
}

#[tokio::test]
async fn a_program_without_its_loader_is_named() {
    let (elf, loader) = program();
    let layer = TarBytes::default().file("usr/bin/python3", &elf).end();
    let store = Store::new().await;
    let new = store.import(TestImage::new(&[layer]).layout()).await.unwrap();
    let table = &new.image.interpreters;
    assert!(table.found.is_empty());
    assert_eq!(
        table.refused[0].reason,
        format!("it needs the loader {loader}, which the image lacks")
    );
}
