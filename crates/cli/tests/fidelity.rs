//! A program cannot tell how its interpreter was started.
//!
//! Every case is a program in `fidelity/`, run in the same box in each way there is: started from
//! nothing when the job comes, started before it, and (Python) forked from a template. Output,
//! errors and ending must be the same, byte for byte. What cannot be the same is in
//! `docs/FIDELITY.md`, and a case names it (`# differs: …`) and must then really differ.
//!
//! `FIDELITY=part-of-a-name` runs only the cases that have it in their names. `FIDELITY_PYTHONS=all`
//! runs them with every supported CPython that pyenv or uv has installed, not only with the oldest.
#![allow(clippy::unwrap_used, reason = "a test may fail at any line")]

#[path = "support/cloche.rs"]
mod support;

#[path = "fidelity/bare.rs"]
mod bare;
#[path = "fidelity/case.rs"]
mod case;
#[path = "fidelity/corpus.rs"]
mod corpus;
#[path = "fidelity/image.rs"]
mod image;
#[path = "fidelity/substrates.rs"]
mod substrates;
#[path = "fidelity/ways.rs"]
mod ways;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use case::Case;
use cloche_model::Language;
use corpus::CorpusReport;
use image::TestImage;
use support::{can_sandbox, skip};
use ways::{Seen, Way, Ways};

/// What is documented as different, by name.
const DOCUMENTED: &str = include_str!("../../../docs/FIDELITY.md");

/// Runs every case of a language in every way, and demands that none can be told from a cold start.
async fn indistinguishable(language: Language, warm: &[Way]) {
    if can_sandbox() {
        let differences = find_differences(None, language, warm).await;
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }
}

async fn find_differences(
    image: Option<&Arc<TestImage>>,
    language: Language,
    warm: &[Way],
) -> Vec<String> {
    let cold = Ways::start_on(image, Way::Cold, &[]).await;
    let mut differences = Vec::new();
    let mut others = Vec::new();
    for way in warm {
        others.push(Ways::start_on(image, *way, &[]).await);
    }
    for case in case::all(language) {
        let bare = cold.run(&case).await;
        for other in &others {
            let seen = other.run(&case).await;
            differences.extend(judge(&case, &bare, &seen, other.way));
        }
    }
    cold.stop().await;
    for other in others {
        other.stop().await;
    }
    differences
}

/// The same on an image, for the languages that have an interpreter which waits.
async fn indistinguishable_on(image: &'static str, languages: &[(Language, &[Way])]) {
    if !can_sandbox() {
        return;
    }
    let Some(image) = TestImage::import(image).await else { return };
    let image = Arc::new(image);
    let mut differences = Vec::new();
    for (language, warm) in languages {
        differences.extend(find_differences(Some(&image), *language, warm).await);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// What is wrong with a case, if anything is.
fn judge(case: &Case, bare: &Seen, warm: &Seen, way: Way) -> Option<String> {
    let name = &case.name;
    match &case.differs {
        Some(what) if !DOCUMENTED.contains(&format!("`{what}`")) => {
            Some(format!("{name}: docs/FIDELITY.md does not say that `{what}` differs"))
        }
        // A template differs in all that is listed; an interpreter of its own in less.
        Some(what) if bare == warm && way != Way::Single => {
            Some(format!("{name}: `{what}` is the same now: take it off the list ({way:?})"))
        }
        Some(_) => None,
        None => bare.difference(warm).map(|what| format!("{name}, {way:?}: {what}")),
    }
}

#[test]
fn python_programs_cannot_tell_how_they_were_started() {
    ways::block_on(async {
        indistinguishable(Language::Python, &[Way::Template, Way::Single]).await;
    });
}

#[test]
fn node_programs_cannot_tell_how_they_were_started() {
    ways::block_on(async {
        if std::fs::exists("/usr/bin/node").unwrap_or(false) || skip("this host has no node") {
            indistinguishable(Language::Node, &[Way::Started]).await;
        }
    });
}

#[test]
fn bash_programs_cannot_tell_how_they_were_started() {
    ways::block_on(indistinguishable(Language::Bash, &[Way::Started]));
}

#[test]
fn programs_cannot_tell_how_they_were_started_on_the_default_image() {
    ways::block_on(async {
        let python: &[Way] = &[Way::Template, Way::Single];
        let started: &[Way] = &[Way::Started];
        let languages =
            [(Language::Python, python), (Language::Node, started), (Language::Bash, started)];
        indistinguishable_on("default", &languages).await;
    });
}

#[test]
fn programs_cannot_tell_how_they_were_started_on_a_musl_image() {
    ways::block_on(async {
        let python: &[Way] = &[Way::Template, Way::Single];
        indistinguishable_on("musl", &[(Language::Python, python)]).await;
    });
}

/// Other versions of CPython that this machine has, by minor version.
fn other_pythons() -> BTreeMap<u32, PathBuf> {
    let home = PathBuf::from(std::env::var_os("HOME").unwrap_or_default());
    let collections = [home.join(".pyenv/versions"), home.join(".local/share/uv/python")];
    let installed = collections.iter().filter_map(|place| std::fs::read_dir(place).ok()).flatten();
    let prefixes: Vec<_> = installed.map(|entry| entry.unwrap().path()).collect();
    let has = |prefix: &PathBuf, minor| prefix.join(format!("bin/python3.{minor}")).exists();
    // The host has 3.11, or what its distribution has; the images have 3.13 and 3.14.
    let minors = [12, 13, 14].into_iter();
    minors
        .filter_map(|minor| Some((minor, prefixes.iter().find(|it| has(it, minor))?.clone())))
        .collect()
}

#[test]
fn programs_cannot_tell_how_they_were_started_with_other_versions_of_python() {
    ways::block_on(async {
        let all = std::env::var("FIDELITY_PYTHONS").is_ok_and(|wanted| wanted == "all");
        let mut differences = Vec::new();
        for (minor, prefix) in other_pythons().into_iter().take(if all { 6 } else { 1 }) {
            if !can_sandbox() {
                return;
            }
            let image = Arc::new(TestImage::copy_python(&prefix).await);
            let warm = [Way::Template, Way::Single];
            let found = find_differences(Some(&image), Language::Python, &warm).await;
            differences.extend(found.into_iter().map(|what| format!("3.{minor}: {what}")));
        }
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    });
}

/// The languages of the corpus.
const CORPUS: [Language; 3] = [Language::Python, Language::Node, Language::Bash];

#[test]
fn typical_programs_run_on_this_host_as_they_do_bare() {
    ways::block_on(async {
        if let Some(report) = CorpusReport::make(None, &CORPUS).await {
            report.check(111);
        }
    });
}

#[test]
fn typical_programs_run_on_the_default_image_as_they_do_bare() {
    ways::block_on(async {
        if let Some(report) = CorpusReport::make(Some("default"), &CORPUS).await {
            assert_eq!(report.left_out, [""; 0], "the default image lacks what they import");
            report.check(121);
        }
    });
}

#[test]
fn typical_programs_run_on_a_musl_image_as_they_do_bare() {
    ways::block_on(async {
        let languages = [Language::Python, Language::Bash];
        if let Some(report) = CorpusReport::make(Some("musl"), &languages).await {
            report.check(103);
        }
    });
}

/// The lines of a run, each once.
fn lines(seen: &Seen) -> Vec<String> {
    String::from_utf8_lossy(&seen.stdout).lines().map(str::to_owned).collect()
}

/// A documented list: the words in the block under a heading.
fn documented(heading: &str) -> Vec<&'static str> {
    let section = DOCUMENTED.split(&format!("## {heading}\n")).nth(1).unwrap_or_default();
    let block = section.split("```").nth(1).unwrap_or_default();
    block.split_whitespace().skip(1).collect()
}

/// Whether a name is on a list; an entry may end with `*`.
fn is_listed(list: &[&str], name: &str) -> bool {
    let fits = |entry: &&str| match entry.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *entry,
    };
    list.iter().any(fits)
}

/// What is loaded in each way: nothing may be missing, and what is more must be documented.
async fn only_documented_is_loaded(language: Language, way: Way, code: &str, heading: &str) {
    if !can_sandbox() {
        return;
    }
    let (cold, warm) = (Ways::start(Way::Cold).await, Ways::start(way).await);
    let case = Case::new(language, "loaded", code);
    let (bare, seen) = (lines(&cold.run(&case).await), lines(&warm.run(&case).await));
    cold.stop().await;
    warm.stop().await;
    let list = documented(heading);
    let missing: Vec<_> = bare.iter().filter(|name| !seen.contains(name)).collect();
    let more = seen.iter().filter(|name| !bare.contains(name));
    let more: Vec<_> = more.filter(|name| !is_listed(&list, name)).collect();
    assert!(bare.len() > 10 && missing.is_empty(), "missing with {way:?}: {missing:?}");
    assert!(more.is_empty(), "loaded with {way:?}, and not documented: {more:?}");
}

const PYTHON_MODULES: &str = "import sys\nprint(*sys.modules, sep='\\n')";

#[test]
fn a_template_shows_no_more_python_modules() {
    ways::block_on(async {
        only_documented_is_loaded(Language::Python, Way::Template, PYTHON_MODULES, "none").await;
    });
}

#[test]
fn preloaded_libraries_behave_as_if_they_were_imported_now() {
    ways::block_on(async {
        let there = std::fs::exists("/usr/lib/python3/dist-packages/pandas").unwrap_or(false);
        if !can_sandbox() || !(there || skip("this host has no pandas: scripts/setup-tests")) {
            return;
        }
        let preload = ["numpy", "pandas", "ssl", "asyncio", "multiprocessing", "urllib.request"];
        let case = Case::new(Language::Python, "preloaded", include_str!("fidelity/preloaded.py"));
        let cold = Ways::start(Way::Cold).await;
        let warm = Ways::start_with(Way::Template, &preload).await;
        let (bare, seen) = (cold.run(&case).await, warm.run(&case).await);
        cold.stop().await;
        warm.stop().await;
        assert_eq!(bare.difference(&seen), None);
    });
}

#[test]
fn an_interpreter_of_its_own_loads_no_more_python_modules() {
    ways::block_on(async {
        only_documented_is_loaded(Language::Python, Way::Single, PYTHON_MODULES, "none").await;
    });
}

#[test]
fn node_loads_only_documented_modules() {
    ways::block_on(async {
        let code = "console.log(process.moduleLoadList.join('\\n').replaceAll(' ', ':'))";
        if std::fs::exists("/usr/bin/node").unwrap_or(false) || skip("this host has no node") {
            only_documented_is_loaded(Language::Node, Way::Started, code, "Node modules").await;
        }
    });
}

/// Siblings of one template must not share what should be random; each line is one such thing.
#[test]
fn siblings_do_not_share_what_is_random() {
    ways::block_on(async {
        if !can_sandbox() {
            return;
        }
        let preload = ["ssl", "uuid", "secrets", "multiprocessing", "numpy", "asyncio"];
        let ways = Ways::start_with(Way::Template, &preload).await;
        let case = Case::new(Language::Python, "random", include_str!("fidelity/random.py"));
        let (first, second) = (ways.run(&case).await, ways.run(&case).await);
        ways.stop().await;
        assert_eq!(first.stderr, b"", "{}", String::from_utf8_lossy(&first.stderr));
        let (first, second) = (lines(&first), lines(&second));
        assert!(first.len() > 10, "{first:?}");
        assert!(first.iter().zip(&second).all(|(a, b)| a != b), "{first:#?}\n{second:#?}");
    });
}
