//! Runs in: server (no capabilities). Where the interpreters of a cell are, and the environment that
//! they start with: those of the host, or those of an image.

use std::{
    collections::BTreeMap,
    ffi::CString,
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use cloche_model::{ImageRoot, Interpreter, Language};

use super::{home_place::HomePlace, run_error::RunError};
use crate::protocol::{SITE_DIR, TOOL_CLIENT_DIR, USER};

/// Where interpreters are looked for on the host, in this order.
pub(crate) const INTERPRETER_DIRS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// The search path of an image that sets none.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables that an image cannot change: who the guest is, and that its output is not buffered.
const FIXED: [&str; 6] = ["HOME", "USER", "LOGNAME", "PWD", "SHELL", "PYTHONUNBUFFERED"];

/// An interpreter of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CellInterpreter {
    /// Its path in the cell.
    pub(crate) path: String,
    /// What it is called as.
    pub(crate) name: String,
    /// Its arguments before the main file.
    pub(crate) arguments: Vec<String>,
}

/// How long an interpreter of the host is taken to be where it was found.
const FOUND_FOR: Duration = Duration::from_secs(5);

/// The interpreters of the host that were found a short while ago, so that not every run looks
/// through the file system for its own.
#[derive(Debug, Default)]
pub(crate) struct HostInterpreters(Mutex<BTreeMap<Language, (Instant, CellInterpreter)>>);

impl HostInterpreters {
    /// The same as [`find_interpreter`].
    pub(crate) fn find(
        &self,
        language: Language,
        image: Option<&ImageRoot>,
    ) -> Result<CellInterpreter, RunError> {
        if image.is_some() {
            return find_interpreter(language, image);
        }
        // A poisoned lock is still used: each entry is written whole.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get(&language) {
            Some((at, found)) if at.elapsed() < FOUND_FOR => Ok(found.clone()),
            _ => {
                let found = find_interpreter(language, None)?;
                all.insert(language, (Instant::now(), found.clone()));
                Ok(found)
            }
        }
    }
}

/// The interpreter of a language, on the host or in an image.
///
/// An interpreter of an image is called by its whole path: that of a virtual environment finds its
/// packages by it, and the search path of the image may begin with another one.
pub(crate) fn find_interpreter(
    language: Language,
    image: Option<&ImageRoot>,
) -> Result<CellInterpreter, RunError> {
    if let Some(image) = image {
        let Some(found) = image.interpreter_of(language) else {
            let has: Vec<&str> = image.languages().map(Language::name).collect();
            let has = if has.is_empty() { "no interpreter".to_owned() } else { has.join(", ") };
            return Err(RunError::NotInImage { language, has });
        };
        let Interpreter { path, arguments, .. } = found.clone();
        return Ok(CellInterpreter { name: path.clone(), path, arguments });
    }
    let names = language.interpreter_names().iter();
    let paths = names.flat_map(|name| INTERPRETER_DIRS.map(|dir| (format!("{dir}/{name}"), *name)));
    let found = paths.into_iter().find(|(path, _)| Path::new(path).exists());
    let (path, name) = found.ok_or(RunError::NoInterpreter(language))?;
    let arguments = language.arguments().iter().map(ToString::to_string).collect();
    Ok(CellInterpreter { path, name: name.to_owned(), arguments })
}

/// The environment that every program has beside its own variables. The variables of an image come
/// after ours, and replace them unless they are fixed.
///
/// With `tool_client`, the client of the web tools is at the end of the search paths of programs and
/// of Python modules, so that it shadows nothing of an image. Contained cells do not have it.
pub(crate) fn base_env(
    image: Option<&ImageRoot>,
    place: &HomePlace,
    tool_client: bool,
) -> Vec<(String, String)> {
    let mut env = own_env(image, place);
    for (name, value) in image.into_iter().flat_map(|image| &image.env) {
        let is_ours = name == "PATH" || FIXED.contains(&&name[..]) || name.starts_with("CLOCHE_");
        if is_ours || name.is_empty() || name.contains('=') {
            continue;
        }
        match env.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => known.clone_from(value),
            None => env.push((name.clone(), value.clone())),
        }
    }
    if tool_client && matches!(place, HomePlace::Usual) {
        append_to_path(&mut env, "PATH", format!("{TOOL_CLIENT_DIR}/bin"));
        append_to_path(&mut env, "PYTHONPATH", format!("{TOOL_CLIENT_DIR}/python"));
    }
    env
}

fn append_to_path(env: &mut Vec<(String, String)>, name: &str, directory: String) {
    match env.iter_mut().find(|(known, value)| known == name && !value.is_empty()) {
        Some((_, value)) => *value = format!("{value}:{directory}"),
        None => {
            env.retain(|(known, _)| known != name);
            env.push((name.to_owned(), directory));
        }
    }
}

fn own_env(image: Option<&ImageRoot>, place: &HomePlace) -> Vec<(String, String)> {
    let home = place.home();
    let (path, shell) = match image {
        None => ("/usr/local/bin:/usr/bin:/bin", "/bin/bash"),
        Some(image) => {
            let path = image.env.get("PATH").map_or(USUAL_PATH, String::as_str);
            let shell = image.interpreter_of(Language::Bash);
            (path, shell.map_or("/bin/sh", |shell| shell.path.as_str()))
        }
    };
    let pairs: [(&str, &str); 12] = [
        ("PATH", &format!("{home}/.local/bin:{path}")),
        ("HOME", &home),
        ("USER", USER),
        ("LOGNAME", USER),
        ("SHELL", shell),
        ("PWD", &home),
        ("LANG", "C.UTF-8"),
        // Output is read while the program runs, so Python must not buffer it.
        ("PYTHONUNBUFFERED", "1"),
        // pip installs into the guest's own home, where it breaks no system package.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1"),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
        ("NPM_CONFIG_PREFIX", &format!("{home}/.local")),
        ("NPM_CONFIG_UPDATE_NOTIFIER", "false"),
    ];
    let mut env: Vec<_> = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    if let HomePlace::Contained { path, hides_packages, .. } = place {
        env.push(("TMPDIR".to_owned(), format!("{path}/tmp")));
        if *hides_packages {
            env.push(("PYTHONPATH".to_owned(), format!("{path}/{SITE_DIR}")));
        }
    }
    env
}

/// Variables as `NAME=value`. Those with a NUL cannot be passed and are left out.
pub(crate) fn env_strings<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<CString> {
    let pairs = pairs.into_iter().map(|(name, value)| format!("{name}={value}"));
    pairs.filter_map(|pair| CString::new(pair).ok()).collect()
}

#[cfg(test)]
mod tests {
    use cloche_model::{EnvVars, ImageDigest, InterpreterTable};

    use super::*;
    use crate::protocol::HOME;

    fn image(env: &[(&str, &str)], languages: &[&str]) -> ImageRoot {
        let found = languages.iter().map(|language| Interpreter {
            language: (*language).to_owned(),
            path: format!("/opt/bin/{language}"),
            arguments: Vec::new(),
            main_file: "main".to_owned(),
            version: None,
        });
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ImageRoot {
            digest: ImageDigest::from_sha256([7; 32]),
            layers: Vec::new(),
            env: env.collect::<EnvVars>(),
            workdir: None,
            interpreters: InterpreterTable { found: found.collect(), refused: Vec::new() },
        }
    }

    fn value(env: &[(String, String)], name: &str) -> Option<String> {
        let mut values = env.iter().filter(|(known, _)| known == name).map(|(_, value)| value);
        let value = values.next().cloned();
        assert_eq!(values.next(), None, "{name} is there twice");
        value
    }

    #[test]
    fn an_interpreter_of_the_host_is_found_once_and_that_of_an_image_each_time() {
        let all = HostInterpreters::default();
        let found = all.find(Language::Bash, None).unwrap();
        assert_eq!(found, find_interpreter(Language::Bash, None).unwrap());
        let known = CellInterpreter { path: "/known".to_owned(), ..found };
        all.0.lock().unwrap().get_mut(&Language::Bash).unwrap().1 = known.clone();
        assert_eq!(all.find(Language::Bash, None).unwrap(), known);
        let image = image(&[], &["bash"]);
        assert_eq!(all.find(Language::Bash, Some(&image)).unwrap().path, "/opt/bin/bash");
    }

    #[test]
    fn variables_of_an_image_replace_ours_unless_they_are_fixed() {
        let image = image(
            &[("PATH", "/opt/bin:/bin"), ("LANG", "de"), ("HOME", "/root"), ("A", "1"), ("", "x")],
            &["sh"],
        );
        let env = base_env(Some(&image), &HomePlace::Usual, false);
        assert_eq!(value(&env, "PATH").unwrap(), "/home/baponi/.local/bin:/opt/bin:/bin");
        assert_eq!(value(&env, "LANG").unwrap(), "de");
        assert_eq!(value(&env, "HOME").unwrap(), HOME);
        assert_eq!(value(&env, "SHELL").unwrap(), "/opt/bin/sh");
        assert_eq!(value(&env, "A").unwrap(), "1");
        assert_eq!(value(&env, ""), None);
    }

    #[test]
    fn the_tool_client_is_last_on_the_search_paths() {
        let paths = |env: &[(&str, &str)]| {
            let env = base_env(Some(&image(env, &[])), &HomePlace::Usual, true);
            (value(&env, "PATH").unwrap(), value(&env, "PYTHONPATH").unwrap())
        };
        let (path, modules) = paths(&[("PATH", "/bin"), ("PYTHONPATH", "/opt/lib")]);
        assert_eq!(path, "/home/baponi/.local/bin:/bin:/run/cloche/bin");
        assert_eq!(modules, "/opt/lib:/run/cloche/python");
        assert_eq!(paths(&[("PYTHONPATH", "")]).1, "/run/cloche/python");
    }

    #[test]
    fn a_language_that_the_image_lacks_is_an_error_with_what_it_has() {
        let image = image(&[], &["ruby", "sh"]);
        let found = find_interpreter(Language::Ruby, Some(&image)).unwrap();
        assert_eq!(found.path, "/opt/bin/ruby");
        let error = find_interpreter(Language::Python, Some(&image)).unwrap_err();
        assert_eq!(error.to_string(), "the image has no python; it has bash, sh, ruby");
    }
}
