//! The escape suite: `cloche verify` on this very host, through the real binary.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

#[path = "support/cloche.rs"]
mod support;

use serde_json::Value;
use support::{cloche, skip};

#[test]
fn every_probe_holds_and_every_group_is_attacked() {
    let ended = cloche(["verify", "--json"]);
    if ended.code == 2 {
        skip(&ended.stderr);
        return;
    }
    let report = ended.json();
    let probes = report["probes"].as_array().unwrap();
    let broke: Vec<_> = probes.iter().filter(|probe| probe["held"] != true).collect();
    assert!(broke.is_empty(), "{broke:#?}");
    assert_eq!(ended.code, 0);
    for (group, least) in [
        ("host boundary", 15),
        ("kernel surface", 14),
        ("resources", 20),
        ("between runs", 8),
        ("network", 6),
    ] {
        let there = probes.iter().filter(|probe| probe["group"] == group).count();
        assert!(there >= least, "{group}: {there}");
    }
    if std::fs::File::open("/dev/net/tun").is_ok() {
        let is_untried = |probe: &&Value| probe["got"].as_str().unwrap().contains("network could");
        let untried: Vec<_> = probes.iter().filter(is_untried).collect();
        assert!(untried.is_empty(), "{untried:#?}");
    }
    assert!(report["seconds"].as_f64().unwrap() < 60.0, "{}", report["seconds"]);
}

#[test]
fn the_table_has_a_line_for_each_probe_and_a_summary() {
    let ended = cloche(["verify", "--only", "privileges", "--only", "names"]);
    if ended.code == 2 {
        skip(&ended.stderr);
        return;
    }
    let shown = ended.printed();
    assert!(shown.contains("held   names") && shown.contains("held   privileges"), "{shown}");
    assert!(shown.lines().last().unwrap().starts_with("4 of 4 held, 0 broke"), "{shown}");
}

#[test]
fn a_probe_that_does_not_exist_is_named() {
    let ended = cloche(["verify", "--only", "nothing"]);
    assert_eq!(ended.code, 2);
    assert_eq!(ended.stderr, "cloche verify: there is no probe \"nothing\"\n");
}
