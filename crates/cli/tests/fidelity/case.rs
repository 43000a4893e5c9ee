//! The cases: programs in files, with what they need said in comments at their top.
//!
//! - `stdin: "a\n"`: standard input, as a JSON string.
//! - `env: NAME=value`: a variable; may be there more than once.
//! - `differs: name`: documented under this name as different.
//! - `lines: dos` or `lines: cut`: ends of lines as elsewhere, or none at the end of the file.
//! - `anew: why`: its interpreter cannot be one that waits.
//! - `needs: a b`: the modules that its interpreter must have.
//! - `each: text`: one of several cases, with `EACH` in the program replaced by the text.
//!
//! A directory with the case's name and `.d` holds its input files.

use std::{collections::BTreeMap, fs, path::Path};

use cloche_model::{FileName, InputFile, Language, RunSpec};

/// A program to run in every way.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) differs: Option<String>,
    pub(crate) starts_anew: bool,
    pub(crate) needs: Vec<String>,
    language: Language,
    code: Vec<u8>,
    stdin: Vec<u8>,
    env: BTreeMap<String, String>,
    files: Vec<InputFile>,
    variants: Vec<String>,
}

/// Every case of a language that was asked for, in the order of their names.
pub(crate) fn all(language: Language) -> Vec<Case> {
    read_directory("tests/fidelity", language)
}

/// Every program of the corpus in a language that was asked for.
pub(crate) fn corpus(language: Language) -> Vec<Case> {
    read_directory("../../tests/corpus", language)
}

fn read_directory(directory: &str, language: Language) -> Vec<Case> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory).join(language.name());
    let wanted = std::env::var("FIDELITY").unwrap_or_default();
    let mut paths: Vec<_> =
        fs::read_dir(here).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let files = paths.iter().filter(|path| path.is_file());
    let cases = files.flat_map(|path| Case::read(language, path).each());
    cases.filter(|case| case.name.contains(&wanted)).collect()
}

impl Case {
    /// A program that needs nothing.
    pub(crate) fn new(language: Language, name: &str, code: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.to_owned(),
            differs: None,
            starts_anew: false,
            needs: Vec::new(),
            language,
            code: code.into(),
            stdin: Vec::new(),
            env: BTreeMap::new(),
            files: Vec::new(),
            variants: Vec::new(),
        }
    }

    fn read(language: Language, path: &Path) -> Self {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut case = Self::new(language, &name, fs::read(path).unwrap());
        let text = String::from_utf8_lossy(&case.code).into_owned();
        let comments = text
            .lines()
            .map_while(|line| line.strip_prefix("# ").or_else(|| line.strip_prefix("// ")));
        for (key, value) in comments.filter_map(|line| line.split_once(": ")) {
            match key {
                "stdin" => case.stdin = serde_json::from_str::<String>(value).unwrap().into(),
                "env" => {
                    let (name, value) = value.split_once('=').unwrap();
                    case.env.insert(name.to_owned(), value.to_owned());
                }
                "each" => case.variants.push(value.to_owned()),
                "lines" if value == "dos" => case.code = text.replace('\n', "\r\n").into(),
                "lines" => case.code = text.trim_end().into(),
                "needs" => case.needs = value.split(' ').map(str::to_owned).collect(),
                "anew" => case.starts_anew = true,
                "differs" => case.differs = Some(value.to_owned()),
                _ => {}
            }
        }
        if let Ok(files) = fs::read_dir(path.with_extension("d")) {
            case.files = files.map(|entry| input(&entry.unwrap().path())).collect();
        }
        case
    }

    /// The cases that a file holds: one, or one for each of its variants.
    fn each(self) -> Vec<Self> {
        if self.variants.is_empty() {
            return vec![self];
        }
        let text = String::from_utf8_lossy(&self.code).into_owned();
        let variant = |with: &String| Self {
            name: format!("{} ({with})", self.name),
            code: text.replace("EACH", with).into_bytes(),
            variants: Vec::new(),
            ..self.clone()
        };
        self.variants.iter().map(variant).collect()
    }

    /// As a run.
    pub(crate) fn spec(&self) -> RunSpec {
        let mut spec = RunSpec::new(self.language, self.code.clone());
        spec.stdin.clone_from(&self.stdin);
        spec.env.clone_from(&self.env);
        spec.files.clone_from(&self.files);
        spec
    }
}

fn input(path: &Path) -> InputFile {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    InputFile { name: FileName::try_from(name).unwrap(), content: fs::read(path).unwrap() }
}
