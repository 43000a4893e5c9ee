//! Which crate may use which: the arrows of the architecture, checked in each `Cargo.toml`.

use toml::{Table, Value};

use crate::{
    rules::Rules,
    tree::{File, Violation},
};

/// Finds dependencies between our crates that the table of arrows does not have.
pub(crate) fn check(rules: &Rules, files: &[File]) -> Vec<Violation> {
    files.iter().flat_map(|file| check_manifest(rules, file)).collect()
}

fn check_manifest(rules: &Rules, file: &File) -> Vec<Violation> {
    let Some(name) = crate_name(&file.path) else { return Vec::new() };
    let Some(allowed) = rules.arrows.get(name) else {
        return vec![file.at(1, format!("crate {name} has no place in the table of arrows"))];
    };
    let manifest = match file.text.as_deref().map(str::parse::<Table>) {
        Some(Ok(manifest)) => manifest,
        _ => return vec![file.at(1, "not a readable manifest")],
    };
    let rank = |name: &str| rules.order.iter().position(|other| other == name);
    let mut found = Vec::new();
    for (kind, target) in dependencies(&manifest) {
        let fine = match kind {
            "dev-dependencies" => rank(&target) < rank(name) && rank(&target).is_some(),
            _ => allowed.contains(&target),
        };
        if !fine {
            let line = line_of(file, &target);
            found.push(file.at(line, format!("{name} may not use {target} ({kind})")));
        }
    }
    found
}

/// `jail` for `crates/jail/Cargo.toml`.
fn crate_name(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
}

/// Our crates that a manifest names, and in which kind of table, those for one platform included.
fn dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let mut found = Vec::new();
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter();
    let platforms = platforms.flat_map(Table::values).filter_map(Value::as_table);
    for table in platforms.chain([manifest]) {
        for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let entries = table.get(kind).and_then(Value::as_table).into_iter().flatten();
            found.extend(entries.filter_map(|(key, value)| Some((kind, ours(key, value)?))));
        }
    }
    found
}

/// The directory of the crate that a dependency means, if it is one of ours.
fn ours(key: &str, value: &Value) -> Option<String> {
    let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
    match package {
        "cloche" => Some("cli".to_owned()),
        _ => package.strip_prefix("cloche-").map(str::to_owned),
    }
}

fn line_of(file: &File, target: &str) -> usize {
    let package = format!("cloche-{target}");
    let lines = file.text.as_deref().unwrap_or_default().lines();
    lines.map(|line| line.contains(&package)).position(|found| found).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tree::samples::{complaints, file};

    fn manifest(name: &str, text: &str) -> Vec<String> {
        complaints(check, &[file(&format!("crates/{name}/Cargo.toml"), text)])
    }

    #[test]
    fn an_arrow_of_the_table_is_fine() {
        let text = "[dependencies]\ncloche-jail.workspace = true\nserde = \"1\"\n";
        assert!(manifest("executor", text).is_empty());
    }

    #[test]
    fn an_arrow_up_or_sideways_is_found() {
        let found = manifest("gateway", "[dependencies]\ncloche-store = { path = \"../store\" }\n");
        assert_eq!(
            found,
            ["crates/gateway/Cargo.toml:2: gateway may not use store (dependencies)"]
        );
        assert_eq!(manifest("jail", "[dependencies]\ncloche-model.workspace = true\n").len(), 1);
        assert_eq!(manifest("jail", "[build-dependencies]\ncloche-model = \"1\"\n").len(), 1);
        assert_eq!(manifest("engine", "[dependencies]\ncloche = { path = \"../cli\" }\n").len(), 1);
    }

    #[test]
    fn a_new_name_or_a_platform_does_not_hide_an_arrow() {
        let renamed = "[dependencies]\nwords = { package = \"cloche-model\", version = \"1\" }\n";
        assert_eq!(manifest("jail", renamed).len(), 1);
        let platform = "[target.'cfg(unix)'.dependencies]\ncloche-model.workspace = true\n";
        assert_eq!(manifest("jail", platform).len(), 1);
    }

    #[test]
    fn tests_may_look_down_but_not_up() {
        assert!(manifest("gateway", "[dev-dependencies]\ncloche-store = \"1\"\n").is_empty());
        assert_eq!(manifest("store", "[dev-dependencies]\ncloche-engine = \"1\"\n").len(), 1);
        assert_eq!(manifest("store", "[dev-dependencies]\ncloche-nowhere = \"1\"\n").len(), 1);
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(manifest("attic", "[package]\n").len(), 1);
        assert_eq!(manifest("jail", "not toml").len(), 1);
    }
}
