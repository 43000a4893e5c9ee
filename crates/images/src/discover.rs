//! Runs in: server (no capabilities).
//!
//! Finds the interpreters of an image in its merged tree, without starting one. Links are resolved
//! inside the image. Whether an interpreter really starts is for a cell to say.

use cloche_layers::{Layers, NodeKind, Tree, TreeNode};
use cloche_model::{ImageSettings, Interpreter, InterpreterTable, LayerDigest, RefusedInterpreter};
use tokio::io::AsyncReadExt;

use crate::{
    ImageError,
    elf::{PROGRAM_BYTES, ProgramKind, recognize_program},
    language_table::{LanguageEntry, all_languages},
};

/// The `PATH` of images that set none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How many links a path may lead through.
const LINKS: usize = 40;
/// How many directories of `PATH` are searched.
const PATH_DIRECTORIES: usize = 64;
/// How many names a pattern may stand for.
const MATCHES: usize = 64;
/// How many candidates of a language are refused before the search ends.
const REFUSALS: usize = 16;
/// The file in which Node.js says its version.
const NODE_VERSION: &str = "include/node/node_version.h";

/// The interpreters of the image with this stack, lowest layer first.
///
/// # Errors
/// If a layer is missing or damaged.
pub async fn find_interpreters(
    layers: &Layers,
    stack: &[LayerDigest],
    settings: &ImageSettings,
) -> Result<InterpreterTable, ImageError> {
    let tree = layers.load_tree(stack).await?;
    let search = InterpreterSearch { layers, tree: &tree, settings };
    let mut table = InterpreterTable::default();
    for language in all_languages() {
        let (found, refused) = search.find_language(language).await?;
        table.found.extend(found);
        table.refused.extend(refused);
    }
    table.found.sort_by(|a, b| a.language.cmp(&b.language));
    Ok(table)
}

struct InterpreterSearch<'a> {
    layers: &'a Layers,
    tree: &'a Tree,
    settings: &'a ImageSettings,
}

impl InterpreterSearch<'_> {
    /// The interpreter of a language, and what was refused before it was found.
    async fn find_language(
        &self,
        language: &LanguageEntry,
    ) -> Result<(Option<Interpreter>, Vec<RefusedInterpreter>), ImageError> {
        let mut refused = Vec::new();
        for directory in self.directories(language) {
            for name in self.names_in(&directory, language) {
                let path = format!("{directory}/{name}");
                let reason = match self.check_program(&path).await? {
                    Ok(version) => {
                        let interpreter = Interpreter {
                            language: language.name.clone(),
                            version: self.find_version(language, &path, version).await?,
                            path,
                            arguments: language.arguments.clone(),
                            main_file: language.main_file.clone(),
                        };
                        return Ok((Some(interpreter), refused));
                    }
                    Err(reason) => reason,
                };
                let language = language.name.clone();
                refused.push(RefusedInterpreter { language, path, reason });
                if refused.len() >= REFUSALS {
                    return Ok((None, refused));
                }
            }
        }
        Ok((None, refused))
    }

    /// The directories to search: of the active environment, of `PATH`, the usual ones, and those of
    /// the language.
    fn directories(&self, language: &LanguageEntry) -> Vec<String> {
        let env = |name: &str| self.settings.env.get(name).map(String::as_str);
        let mut all: Vec<String> = Vec::new();
        for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            all.extend(env(name).map(|prefix| format!("{prefix}/bin")));
        }
        let path = env("PATH").filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH);
        all.extend(path.split(':').take(PATH_DIRECTORIES).map(str::to_owned));
        all.extend(DEFAULT_PATH.split(':').map(str::to_owned));
        all.extend(language.directories.iter().flat_map(|pattern| self.expand(pattern)));
        let mut seen = Vec::new();
        for directory in all {
            let directory = directory.trim_end_matches('/').to_owned();
            if directory.starts_with('/') && !seen.contains(&directory) {
                seen.push(directory);
            }
        }
        seen
    }

    /// Replaces `*` in a pattern by the names that exist, the newest version first.
    fn expand(&self, pattern: &str) -> Vec<String> {
        let Some((before, after)) = pattern.split_once('*') else {
            return vec![pattern.to_owned()];
        };
        let Some((directory, prefix)) = before.rsplit_once('/') else { return Vec::new() };
        let mut names: Vec<&str> = self.list_names(directory);
        names.retain(|name| name.starts_with(prefix));
        names.sort_by_key(|name| std::cmp::Reverse(version_numbers(name)));
        names.truncate(MATCHES);
        names.iter().flat_map(|name| self.expand(&format!("{directory}/{name}{after}"))).collect()
    }

    /// The names in a directory of the image.
    fn list_names(&self, directory: &str) -> Vec<&str> {
        let Some((path, _)) = self.resolve(directory.as_bytes()) else { return Vec::new() };
        let names = self.tree.list_directory(&path).unwrap_or_default();
        names.into_iter().filter_map(|(name, _)| std::str::from_utf8(name).ok()).collect()
    }

    /// The names of a language's interpreters that a directory has, in order of preference.
    fn names_in(&self, directory: &str, language: &LanguageEntry) -> Vec<String> {
        let present = self.list_names(directory);
        let mut names: Vec<String> =
            language.programs.iter().filter(|name| present.contains(&&name[..])).cloned().collect();
        for prefix in &language.versioned {
            let is_version = |name: &&&str| {
                let rest = name.strip_prefix(&prefix[..]).unwrap_or_default();
                !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == '.')
            };
            let mut versions: Vec<&str> = present.iter().filter(is_version).copied().collect();
            versions.sort_by_key(|name| std::cmp::Reverse(version_numbers(name)));
            names.extend(versions.into_iter().take(MATCHES).map(str::to_owned));
        }
        names
    }

    /// The path of the file that a path leads to inside the image, and its node.
    fn resolve(&self, path: &[u8]) -> Option<(Vec<u8>, &TreeNode)> {
        let parts = |path: &[u8]| -> Vec<Vec<u8>> {
            let parts = path.split(|&byte| byte == b'/');
            parts.filter(|part| !matches!(*part, b"" | b".")).map(<[u8]>::to_vec).rev().collect()
        };
        let mut rest = parts(path);
        let mut here: Vec<u8> = Vec::new();
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b".." {
                here.truncate(here.iter().rposition(|&byte| byte == b'/').unwrap_or(0));
                continue;
            }
            let next = if here.is_empty() { name } else { [&here[..], &name].join(&b'/') };
            match &self.tree.get(&next)?.kind {
                NodeKind::Symlink(target) => {
                    links += 1;
                    if links > LINKS || rest.len() > 4096 {
                        return None;
                    }
                    if target.starts_with(b"/") {
                        here.clear();
                    }
                    rest.extend(parts(target));
                }
                _ => here = next,
            }
        }
        let node = self.tree.get(&here)?;
        Some((here, node))
    }

    /// Whether a program can be started, as far as files say. The inner result has the path of the
    /// file, or why not.
    async fn check_program(&self, path: &str) -> Result<Result<Vec<u8>, String>, ImageError> {
        let Some((file, node)) = self.resolve(path.as_bytes()) else {
            return Ok(Err("a link leads to a file that does not exist".to_owned()));
        };
        if node.kind != NodeKind::File {
            return Ok(Err("it is not a file".to_owned()));
        }
        if node.mode & 0o111 == 0 {
            return Ok(Err("it is not executable".to_owned()));
        }
        let begin = self.read_begin(node, PROGRAM_BYTES).await?;
        Ok(match recognize_program(&begin) {
            ProgramKind::Native(None) => Ok(file),
            ProgramKind::Native(Some(loader)) => match self.resolve(&loader) {
                Some((_, node)) if node.kind == NodeKind::File => Ok(file),
                _ => {
                    let loader = String::from_utf8_lossy(&loader);
                    Err(format!("it needs the loader {loader}, which the image lacks"))
                }
            },
            ProgramKind::Foreign => Err("it is for another processor".to_owned()),
            ProgramKind::Script(line) => {
                Err(format!("it is a script that starts another program: {line}"))
            }
            ProgramKind::Unknown => Err("it is not a program".to_owned()),
        })
    }

    async fn read_begin(&self, node: &TreeNode, most: u64) -> Result<Vec<u8>, ImageError> {
        let mut file = self.layers.open_node(node, Some(0..most)).await?;
        let mut bytes = Vec::new();
        let read = file.content.read_to_end(&mut bytes).await;
        read.map_err(ImageError::io("reading a program of the image"))?;
        Ok(bytes)
    }

    /// The version in the name of the file, in a directory above it, or in a header file.
    async fn find_version(
        &self,
        language: &LanguageEntry,
        path: &str,
        file: Vec<u8>,
    ) -> Result<Option<String>, ImageError> {
        let file = String::from_utf8_lossy(&file).into_owned();
        let name = file.rsplit('/').next().unwrap_or_default();
        let version = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        if version.contains('.') && is_version(version) {
            return Ok(Some(version.to_owned()));
        }
        if language.name == "node" {
            let prefix = file.rsplit_once('/').and_then(|(bin, _)| bin.rsplit_once('/'));
            let prefix = prefix.map_or("", |(prefix, _)| prefix);
            let header = format!("{prefix}/{NODE_VERSION}");
            if let Some((_, node)) = self.resolve(header.as_bytes())
                && node.kind == NodeKind::File
            {
                let text = self.read_begin(node, PROGRAM_BYTES).await?;
                return Ok(read_node_version(&String::from_utf8_lossy(&text)));
            }
        }
        let in_path = |path: &str| {
            path.split('/').rev().find_map(|part| {
                let version = part.trim_start_matches(|c: char| !c.is_ascii_digit());
                let version = version.split('-').next().unwrap_or_default();
                (version.contains('.') && is_version(version)).then(|| version.to_owned())
            })
        };
        Ok(in_path(path).or_else(|| in_path(&file)))
    }
}

fn is_version(text: &str) -> bool {
    text.len() <= 32
        && text.split('.').all(|part| {
            !part.is_empty() && part.len() <= 8 && part.chars().all(|c| c.is_ascii_digit())
        })
}

/// The numbers in a name, to sort versions.
fn version_numbers(name: &str) -> Vec<u64> {
    let numbers = name.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

fn read_node_version(header: &str) -> Option<String> {
    let value = |name: &str| {
        let line = header.lines().find_map(|line| {
            line.strip_prefix("#define ")?
                .trim_start()
                .strip_prefix(name)?
                .split_whitespace()
                .next()
        })?;
        line.parse::<u32>().ok()
    };
    let (major, minor, patch) =
        (value("NODE_MAJOR_VERSION")?, value("NODE_MINOR_VERSION")?, value("NODE_PATCH_VERSION")?);
    Some(format!("{major}.{minor}.{patch}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_their_numbers() {
        let mut names = vec!["python3.9", "python3.14", "python3.10"];
        names.sort_by_key(|name| std::cmp::Reverse(version_numbers(name)));
        assert_eq!(names, ["python3.14", "python3.10", "python3.9"]);
    }

    #[test]
    fn the_version_of_node_is_in_its_header() {
        let header = "#define NODE_MAJOR_VERSION 25\n#define NODE_MINOR_VERSION 9\n\
                      #define NODE_PATCH_VERSION 0\n";
        assert_eq!(read_node_version(header), Some("25.9.0".to_owned()));
        assert_eq!(read_node_version("#define NODE_MAJOR_VERSION x"), None);
    }
}
