//! Runs in: test.
//!
//! The help of the command line offers nothing that is refused. The test walks the help of every
//! command and tries each option of `run` and of the commands that change or list settings, with
//! every value that the help names.

use std::{
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
};

use cloche_test_support::command::Ended;
use serde_json::Value;

use crate::{
    host::Host,
    support::{binary, cloche, ended},
};

/// Options of every command, which the test itself uses.
const GLOBAL: [&str; 5] = ["--data-dir", "--url", "--json", "--help", "--version"];

/// An option as the help shows it.
#[derive(Debug, Default)]
struct HelpOption {
    name: String,
    /// `SIZE` of `--memory <SIZE>`; empty for a flag.
    value_name: String,
    text: String,
}

impl HelpOption {
    /// The values that the help names: alternatives, examples and words in backquotes.
    fn named_values(&self) -> Vec<String> {
        let alternatives = self.value_name.split('|').filter(|word| is_value(word));
        let mut values: Vec<_> = alternatives.map(str::to_owned).collect();
        let quoted = self.text.split('`').skip(1).step_by(2);
        values.extend(quoted.filter(|word| is_value(word)).map(str::to_owned));
        for mark in ["such as ", "[possible values: "] {
            if let Some((_, after)) = self.text.split_once(mark) {
                values.extend(list_words(after));
            }
        }
        let text = self.text.split(" [").next().unwrap_or_default();
        match text.split_once(": ") {
            Some((_, after)) => values.extend(list_words(after)),
            None if text.starts_with(char::is_lowercase) => values.extend(list_words(text)),
            None => {}
        }
        values
    }
}

/// Whether a word of the help is a value to type, and not a placeholder or a path.
fn is_value(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// The words of `a, b or c for something; and so on`.
fn list_words(text: &str) -> Vec<String> {
    let list = text.split([';', ']']).next().unwrap_or_default();
    let list = list.replace(", or ", ", ").replace(" or ", ", ");
    let first = |piece: &str| piece.split_whitespace().next().map(str::to_owned);
    list.split(", ").filter_map(first).collect()
}

fn help(words: &[&str]) -> String {
    let ended = cloche(words.iter().copied().chain(["--help"]));
    assert_eq!(ended.code, 0, "{words:?} {ended:?}");
    ended.stdout
}

/// The lines of a section of the help.
fn section<'a>(help: &'a str, title: &str) -> impl Iterator<Item = &'a str> {
    let after = help.split_once(&format!("\n{title}:\n")).map_or("", |(_, after)| after);
    after.lines().take_while(|line| line.is_empty() || line.starts_with(' '))
}

fn read_subcommands(help: &str) -> Vec<String> {
    let names = section(help, "Commands").filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn read_options(help: &str) -> Vec<HelpOption> {
    let mut options: Vec<HelpOption> = Vec::new();
    for line in section(help, "Options") {
        let words = line.trim_start();
        if words.starts_with('-') {
            let (signature, text) = words.split_once("  ").unwrap_or((words, ""));
            let mut names = signature.split([' ', ',']).filter(|word| word.starts_with('-'));
            let name = names.clone().find(|word| word.starts_with("--")).or_else(|| names.next());
            let value = signature.split_once('<').map_or("", |(_, value)| value);
            options.push(HelpOption {
                name: name.unwrap_or_default().to_owned(),
                value_name: value.split('>').next().unwrap_or_default().to_owned(),
                text: text.trim().to_owned(),
            });
        } else if let Some(option) = options.last_mut() {
            option.text = format!("{} {words}", option.text).trim().to_owned();
        }
    }
    options.retain(|option| !GLOBAL.contains(&option.name.as_str()));
    options
}

/// Every command without subcommands, by its words.
fn leaves(words: &[String]) -> Vec<Vec<String>> {
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    let subcommands = read_subcommands(&help(&names));
    if subcommands.is_empty() {
        return vec![words.to_vec()];
    }
    let below = |name: String| leaves(&[words, &[name]].concat());
    subcommands.into_iter().flat_map(below).collect()
}

/// A server, and objects on it to change.
struct Subjects {
    host: Host,
    made: AtomicUsize,
}

impl Subjects {
    fn name(&self) -> String {
        format!("subject-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }

    fn admin(&self, words: &[String]) -> Ended {
        let mut command = Command::new(binary());
        command.args(words).arg("--data-dir").arg(self.host.data());
        ended(command, b"")
    }

    fn create(&self, noun: &str) -> String {
        let words = [noun, "create", &self.name(), "--json"].map(str::to_owned).to_vec();
        let plan = ["--plan".to_owned(), "enterprise".to_owned()];
        let words = if noun == "team" { [words, plan.to_vec()].concat() } else { words };
        let made: Value = self.admin(&words).json();
        made["id"].as_str().unwrap_or_else(|| panic!("{words:?} {made}")).to_owned()
    }

    /// The arguments that a command needs besides its options; `None` if it is not tried.
    fn arguments(&self, leaf: &[&str], option: &str) -> Option<Vec<String>> {
        let arguments = match leaf {
            ["team", "create"] if option != "--plan" => {
                vec![self.name(), "--plan".to_owned(), "free".to_owned()]
            }
            ["team" | "sandbox" | "key", "create"] => vec![self.name()],
            [noun @ ("team" | "sandbox" | "key"), "set"] => vec![self.create(noun)],
            ["team" | "sandbox" | "key" | "approval", "list"] | ["approval", "history"] => vec![],
            // A program in every language.
            ["run"] => vec!["-c".to_owned(), "A=1".to_owned()],
            _ => return None,
        };
        Some(arguments)
    }

    /// The option with each value that the help names, and with one that it does not name.
    fn ways(&self, option: &HelpOption) -> Vec<Vec<String>> {
        if option.value_name.is_empty() {
            return vec![vec![option.name.clone()]];
        }
        let sample = self.sample(&option.value_name);
        let values: Vec<_> = option.named_values().into_iter().chain(sample).collect();
        assert!(!values.is_empty(), "name a value of {option:?} in the help, or add a sample");
        let way = |value: String| {
            // A policy and its rules go together.
            let with: &[&str] = match (option.name.as_str(), value.as_str()) {
                ("--network", "allowlist") => &["--allow", "pypi.example"],
                ("--allow", _) => &["--network", "allowlist"],
                _ => &[],
            };
            let with = with.iter().map(ToString::to_string);
            [option.name.clone(), value].into_iter().chain(with).collect()
        };
        values.into_iter().map(way).collect()
    }

    /// A value of this kind.
    fn sample(&self, value_name: &str) -> Option<String> {
        let file = self.host.directory().join("sample");
        std::fs::write(&file, "sample").unwrap();
        Some(match value_name {
            "NAME=VALUE" => "A=b".to_owned(),
            "NAME=FILE" => format!("A={}", file.display()),
            "FILE" | "PATH" => file.display().to_string(),
            "URL" => "https://127.0.0.1:9/hook".to_owned(),
            "TEAM" | "SANDBOX" => "default".to_owned(),
            "IMAGE" => "host".to_owned(),
            "COUNT" | "DAYS" | "SECONDS" => "30".to_owned(),
            "WALL" => "cgroups".to_owned(),
            "NAME" => self.name(),
            "DIR:/data/NAME[:ro]" => format!("{}:/data/sample:ro", self.host.directory().display()),
            "STORAGE" => {
                let name = self.name();
                let words = ["volume", "create", &name, "--quota", "1M"];
                assert_eq!(self.admin(&words.map(str::to_owned)).code, 0);
                name
            }
            "RULE" => "pypi.example".to_owned(),
            "ID" => "apr_1".to_owned(),
            _ => return None,
        })
    }
}

#[tokio::test]
async fn the_help_offers_nothing_that_is_refused() {
    let arguments = ["--webhook-allow", "127.0.0.0/8"];
    let Some(host) = Host::start_with(&arguments).await else { return };
    let subjects = Subjects { host, made: AtomicUsize::new(0) };
    let (mut tried, mut refused) = (0, Vec::new());
    for leaf in leaves(&[]) {
        let words: Vec<&str> = leaf.iter().map(String::as_str).collect();
        for option in read_options(&help(&words)) {
            if subjects.arguments(&words, &option.name).is_none() || option.name == "-c" {
                continue;
            }
            for way in subjects.ways(&option) {
                let needed = subjects.arguments(&words, &option.name).unwrap_or_default();
                let command = [leaf.clone(), needed, way].concat();
                let ended = match words[..] {
                    ["run"] => cloche(&command),
                    _ => subjects.admin(&command),
                };
                tried += 1;
                if ended.code != 0 {
                    refused.push(format!("{}: {}", command.join(" "), ended.stderr));
                }
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join(""));
    assert!(tried > 60, "the walk found only {tried} options");
}
