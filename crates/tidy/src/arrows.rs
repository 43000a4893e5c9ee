//! Which crate may use which: the arrows of the architecture, checked in each `Cargo.toml`.

use toml::{Table, Value};

use crate::{
    rules::TidyRules,
    tree::{TreeFile, Violation},
};

/// The crate of the fuzz targets, and the feature that gives it entry points to private code.
const FUZZ: &str = "fuzz";
const FUZZING: &str = "fuzzing";

/// Finds dependencies between our crates that the table of arrows does not have.
pub(crate) fn check_arrows(rules: &TidyRules, files: &[TreeFile]) -> Vec<Violation> {
    files.iter().flat_map(|file| check_manifest(rules, file)).collect()
}

fn check_manifest(rules: &TidyRules, file: &TreeFile) -> Vec<Violation> {
    let Some(name) = crate_name(&file.path) else { return Vec::new() };
    let Some(allowed) = rules.arrows.get(name) else {
        return vec![
            file.violation_at(1, format!("crate {name} has no place in the table of arrows")),
        ];
    };
    let manifest = match file.text.as_deref().map(str::parse::<Table>) {
        Some(Ok(manifest)) => manifest,
        _ => return vec![file.violation_at(1, "not a readable manifest")],
    };
    let rank = |name: &str| rules.order.iter().position(|other| other == name);
    let is_upward_dev = |target: &String| {
        rules.upward_dev_arrows.get(name).is_some_and(|targets| targets.contains(target))
    };
    let mut found = Vec::new();
    for (kind, target) in list_dependencies(&manifest) {
        let fine = match kind {
            "dev-dependencies" if is_upward_dev(&target) => true,
            "dev-dependencies" => rank(&target) < rank(name) && rank(&target).is_some(),
            _ => allowed.contains(&target),
        };
        if !fine {
            let line = line_of_dependency(file, &target);
            found.push(file.violation_at(line, format!("{name} may not use {target} ({kind})")));
        }
    }
    if name != FUZZ && turns_on_fuzzing(&manifest) {
        found.push(file.violation_at(
            line_of_text(file, FUZZING),
            "only fuzz/ may turn on the feature fuzzing",
        ));
    }
    found
}

/// Whether a dependency or a default has the feature of the fuzz targets.
fn turns_on_fuzzing(manifest: &Table) -> bool {
    let names_it = |value: &Value| {
        let features = value.as_array().into_iter().flatten();
        features.filter_map(Value::as_str).any(|feature| feature.ends_with(FUZZING))
    };
    let dependencies = dependency_tables(manifest).flat_map(|(_, table)| table.values());
    let defaults = manifest.get("features").and_then(Value::as_table).into_iter().flatten();
    dependencies.filter_map(|value| value.get("features")).any(names_it)
        || defaults.filter(|(name, _)| *name != FUZZING).any(|(_, value)| names_it(value))
}

/// `jail` for `crates/jail/Cargo.toml`; the fuzz targets lie beside the crates.
fn crate_name(path: &str) -> Option<&str> {
    if path == "fuzz/Cargo.toml" {
        return Some(FUZZ);
    }
    path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml").filter(|name| !name.contains('/'))
}

/// Our crates that a manifest names, and in which kind of table, those for one platform included.
fn list_dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let entries = dependency_tables(manifest)
        .flat_map(|(kind, table)| table.iter().map(move |it| (kind, it)));
    entries.filter_map(|(kind, (key, value))| Some((kind, own_crate_dir(key, value)?))).collect()
}

/// The tables of dependencies, by their kind.
fn dependency_tables(manifest: &Table) -> impl Iterator<Item = (&'static str, &Table)> {
    const KINDS: [&str; 3] = ["dependencies", "build-dependencies", "dev-dependencies"];
    let platforms = manifest.get("target").and_then(Value::as_table).into_iter();
    let platforms = platforms.flat_map(Table::values).filter_map(Value::as_table);
    platforms.chain([manifest]).flat_map(|table| {
        KINDS.into_iter().filter_map(move |kind| Some((kind, table.get(kind)?.as_table()?)))
    })
}

/// The directory of the crate that a dependency means, if it is one of ours.
fn own_crate_dir(key: &str, value: &Value) -> Option<String> {
    let package = value.get("package").and_then(Value::as_str).unwrap_or(key);
    match package {
        "cloche" => Some("cli".to_owned()),
        _ => package.strip_prefix("cloche-").map(str::to_owned),
    }
}

fn line_of_dependency(file: &TreeFile, target: &str) -> usize {
    line_of_text(file, &format!("cloche-{target}"))
}

fn line_of_text(file: &TreeFile, text: &str) -> usize {
    let lines = file.text.as_deref().unwrap_or_default().lines();
    lines.map(|line| line.contains(text)).position(|found| found).map_or(1, |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::check_arrows;
    use crate::tree::samples::{list_complaints, sample_file};

    fn manifest(name: &str, text: &str) -> Vec<String> {
        list_complaints(check_arrows, &[sample_file(&format!("crates/{name}/Cargo.toml"), text)])
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
        // An exception of the table.
        assert!(manifest("executor", "[dev-dependencies]\ncloche-verify = \"1\"\n").is_empty());
        assert_eq!(manifest("executor", "[dependencies]\ncloche-verify = \"1\"\n").len(), 1);
    }

    #[test]
    fn what_tests_share_is_only_a_development_dependency() {
        let name = "cloche-test-support = \"1\"\n";
        assert!(manifest("model", &format!("[dev-dependencies]\n{name}")).is_empty());
        assert_eq!(manifest("cli", &format!("[dependencies]\n{name}")).len(), 1);
    }

    #[test]
    fn only_the_fuzz_targets_turn_on_their_entry_points() {
        let text = "[dependencies]\ncloche-jail = { path = \"../j\", features = [\"fuzzing\"] }\n";
        assert!(list_complaints(check_arrows, &[sample_file("fuzz/Cargo.toml", text)]).is_empty());
        assert_eq!(
            manifest("executor", text),
            ["crates/executor/Cargo.toml:2: only fuzz/ may turn on the feature fuzzing"]
        );
        let default = "[features]\ndefault = [\"fuzzing\"]\nfuzzing = []\n";
        assert_eq!(manifest("jail", default).len(), 1);
        assert!(manifest("jail", "[features]\nfuzzing = []\n").is_empty());
        let store = "[dependencies]\ncloche-store = { path = \"../crates/store\" }\n";
        assert_eq!(
            list_complaints(check_arrows, &[sample_file("fuzz/Cargo.toml", store)]).len(),
            1
        );
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        assert_eq!(manifest("attic", "[package]\n").len(), 1);
        assert_eq!(manifest("jail", "not toml").len(), 1);
    }
}
