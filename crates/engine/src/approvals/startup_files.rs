//! Runs in: server (no capabilities). Files of a home that programs run or obey without naming them: the
//! way that unapproved code gets into an approved execution.

/// Python modules that a file at the top of a home is imported in place of.
const PYTHON_MODULES: &str = include_str!("../../data/python-modules.txt");

/// Names, wherever they are, and why they matter.
const NAMES: &[(&[&str], &str)] = &[
    (&["usercustomize", "sitecustomize"], "Python runs it at every start"),
    (&["conftest"], "pytest runs it"),
    (&["pyvenv", "pip", "pydistutils"], "changes what Python imports or installs"),
    (&["package"], "changes how Node loads modules"),
    (&["Makefile", "makefile", "GNUmakefile"], "make runs it"),
];

/// Directories, wherever they are.
const DIRECTORIES: &[(&str, &str)] = &[
    ("node_modules", "Node loads modules from it"),
    ("site-packages", "Python imports modules from it"),
    ("dist-packages", "Python imports modules from it"),
    (".git", "git runs its hooks and obeys its configuration"),
];

/// Hidden files of the home that have a reason of their own; all others have a general one.
const HIDDEN: &[(&str, &str)] = &[
    (".bash", "Bash runs it at start"),
    (".profile", "shells run it at start"),
    (".npmrc", "npm obeys it"),
    (".local/lib/python", "Python imports modules from it at every start"),
    (".pythonrc", "Python runs it at start"),
];

/// Why a program may run or obey this path without naming it; none if it does not.
pub(super) fn warning_for(path: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(path);
    let name = text.rsplit('/').next().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let by_name = NAMES.iter().find(|(stems, _)| stems.contains(&stem));
    // A package of that name is the same.
    let parent = text.rsplit('/').nth(1).unwrap_or_default();
    let by_parent = NAMES[..1].iter().find(|(stems, _)| stems.contains(&parent));
    let by_directory = || {
        let found = DIRECTORIES.iter().find(|(name, _)| text.split('/').any(|part| part == *name));
        found.map(|(_, why)| *why)
    };
    let why = if name.ends_with(".pth") {
        Some("Python runs the import lines in it at every start")
    } else if let Some((_, why)) = by_name.or(by_parent).filter(|_| !stem.is_empty()) {
        Some(*why)
    } else if let Some((_, why)) = HIDDEN.iter().find(|(start, _)| text.starts_with(start)) {
        Some(*why)
    } else {
        by_directory()
    };
    if let Some(why) = why {
        return Some(why.to_owned());
    }
    if let Some(module) = shadowed_module(&text) {
        return Some(format!("Python imports it in place of the module {module}"));
    }
    text.starts_with('.').then(|| "programs may read this hidden file at their start".to_owned())
}

/// The known module that a file at the top of the home takes the place of.
fn shadowed_module(path: &str) -> Option<&str> {
    let mut parts = path.splitn(2, '/');
    let (first, rest) = (parts.next()?, parts.next());
    let module = match rest {
        Some(_) => first,
        None => {
            let (stem, extension) = first.split_once('.')?;
            let is_module = ["py", "pyc", "so", "pyd"].iter().any(|end| extension.ends_with(end));
            is_module.then_some(stem)?
        }
    };
    let mut known = PYTHON_MODULES.lines().filter(|line| !line.starts_with('#'));
    known.any(|name| name == module).then_some(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_run_at_interpreter_start_have_a_warning() {
        for (path, why) in [
            (".local/lib/python3.11/site-packages/usercustomize.py", "at every start"),
            ("x/sitecustomize.py", "at every start"),
            ("usercustomize/__init__.py", "at every start"),
            ("deep/a.pth", "import lines"),
            (".bashrc", "Bash runs it"),
            (".bash_profile", "Bash runs it"),
            (".profile", "shells run it"),
            (".npmrc", "npm"),
            ("node_modules/left-pad/index.js", "Node loads"),
            ("json.py", "in place of the module json"),
            ("numpy/__init__.py", "in place of the module numpy"),
            ("random.cpython-311-x86_64-linux-gnu.so", "in place of the module random"),
            ("tests/conftest.py", "pytest"),
            (".config/matplotlib/matplotlibrc", "hidden file"),
            (".git/hooks/pre-commit", "git"),
            ("package.json", "Node"),
        ] {
            let warning = warning_for(path.as_bytes()).unwrap_or_default();
            assert!(warning.contains(why), "{path}: {warning:?}");
        }
        for path in ["main.py", "helper.py", "data/out.csv", "json.txt", "src/json.py", "a.json"] {
            assert_eq!(warning_for(path.as_bytes()), None, "{path}");
        }
    }
}
