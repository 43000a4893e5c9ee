//! The rules for environment variables that a caller sets, at each of the three levels and after
//! they are merged.

use std::collections::BTreeMap;

use crate::{Invalid, Secret};

/// Environment variables by name.
pub type EnvVars = BTreeMap<String, String>;
/// Variables whose values are never shown again, by name.
pub type SecretVars = BTreeMap<String, Secret>;
/// Shown in place of the value of a secret variable.
pub const SHOWN_SECRET: &str = "********";

/// All variables of one level, with secret values, for the program. A name is in only one of the
/// two maps.
#[must_use]
pub fn reveal_level(plain: &EnvVars, secret: &SecretVars) -> EnvVars {
    let revealed = secret.iter().map(|(name, value)| (name.clone(), value.reveal().to_owned()));
    plain.iter().map(|(name, value)| (name.clone(), value.clone())).chain(revealed).collect()
}

/// All variables of one level, with secret values masked, for people.
#[must_use]
pub fn show_level(plain: EnvVars, secret: &SecretVars) -> EnvVars {
    let hidden = secret.keys().map(|name| (name.clone(), SHOWN_SECRET.to_owned()));
    plain.into_iter().chain(hidden).collect()
}

/// The limit on variables, at each level and after the merge.
pub const MAX_VARS: usize = 50;
/// The limit on characters of a name.
pub const MAX_NAME_CHARS: usize = 128;
/// The limit on characters of a value.
pub const MAX_VALUE_CHARS: usize = 4096;
/// The limit on bytes of all names and values together.
pub const MAX_TOTAL_BYTES: usize = 64 << 10;

/// Names that affect the interpreter, the loader or the shell, or that the sandbox sets itself.
const RESERVED_NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "TMP",
    "TEMP",
    "PWD",
    "OLDPWD",
    "SHELL",
    "USER",
    "LOGNAME",
    "MAIL",
    "TERM",
    "EDITOR",
    "VISUAL",
    "HOSTNAME",
    "IFS",
    "LANG",
    "LANGUAGE",
    "BASH_ENV",
    "BASH_XTRACEFD",
    "ENV",
    "CDPATH",
    "GLOBIGNORE",
    "PROMPT_COMMAND",
    "PS1",
    "PS2",
    "PS3",
    "PS4",
    "SHELLOPTS",
    "BASHOPTS",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NODE_EXTRA_CA_CERTS",
    "NODE_REPL_EXTERNAL_MODULE",
    "CARGO_HOME",
    "RUSTUP_HOME",
    "GOPATH",
    "GOMODCACHE",
    "GOBIN",
    "R_LIBS_USER",
    "JULIA_DEPOT_PATH",
    "GCONV_PATH",
    "MALLOC_TRACE",
    "GLIBC_TUNABLES",
    "OPENSSL_CONF",
    "OPENSSL_MODULES",
];
const RESERVED_PREFIXES: &[&str] =
    &["LC_", "LD_", "PYTHON", "PIP_", "NPM_CONFIG_", "XDG_", "BAPONI_", "CLOCHE_", "NSJAIL_", "_"];
const RESERVED_SUFFIXES: &[&str] = &["_PROXY"];

/// Checks the variables of one level. Messages call them `field`.
///
/// # Errors
/// On the first rule that is broken.
pub fn check_level(field: &str, vars: &EnvVars) -> Result<(), Invalid> {
    check_count(field, vars.len())?;
    for (name, value) in vars {
        check_name(field, name)?;
        check_value(field, name, value)?;
    }
    check_total(field, vars)
}

/// Merges the three levels, the most specific last, and checks what the merge could break.
///
/// # Errors
/// When the merged set has too many variables or is too large.
pub fn merge_levels(
    sandbox: &EnvVars,
    key: &EnvVars,
    request: &EnvVars,
) -> Result<EnvVars, Invalid> {
    let mut merged = sandbox.clone();
    for level in [key, request] {
        merged.extend(level.iter().map(|(name, value)| (name.clone(), value.clone())));
    }
    const FIELD: &str = "env_vars merged with those of the sandbox and the key";
    check_count(FIELD, merged.len())?;
    check_total(FIELD, &merged)?;
    Ok(merged)
}

fn check_count(field: &str, count: usize) -> Result<(), Invalid> {
    if count > MAX_VARS {
        return Err(Invalid::new(format!("{field} exceeds {MAX_VARS} variables, got {count}")));
    }
    Ok(())
}

fn check_total(field: &str, vars: &EnvVars) -> Result<(), Invalid> {
    let total: usize = vars.iter().map(|(name, value)| name.len() + value.len()).sum();
    if total > MAX_TOTAL_BYTES {
        return Err(Invalid::new(format!(
            "{field} exceeds {MAX_TOTAL_BYTES} bytes of names and values, got {total}"
        )));
    }
    Ok(())
}

fn check_name(field: &str, name: &str) -> Result<(), Invalid> {
    let chars = name.chars().count();
    if chars == 0 || chars > MAX_NAME_CHARS {
        return Err(Invalid::new(format!(
            "{field}: a name must be 1 to {MAX_NAME_CHARS} characters, got {chars}"
        )));
    }
    // Checked first, so that `_X` and `http_proxy` get the same message as any other reserved name.
    if is_reserved(name) {
        return Err(Invalid::new("this environment variable name is reserved by the system"));
    }
    let plain = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_uppercase()) || !name.chars().all(plain) {
        return Err(Invalid::new(format!(
            "{field}: a name must start with an uppercase letter and contain only uppercase \
             letters, digits and underscores"
        )));
    }
    Ok(())
}

fn check_value(field: &str, name: &str, value: &str) -> Result<(), Invalid> {
    let chars = value.chars().count();
    if chars > MAX_VALUE_CHARS {
        return Err(Invalid::new(format!(
            "{field}: the value of {name} exceeds {MAX_VALUE_CHARS} characters, got {chars}"
        )));
    }
    if value.bytes().any(|byte| byte < 32 && !matches!(byte, b'\t' | b'\n' | b'\r')) {
        return Err(Invalid::new(format!(
            "{field}: the value of {name} contains a null byte or control character"
        )));
    }
    Ok(())
}

fn is_reserved(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    RESERVED_NAMES.contains(&name.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || RESERVED_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::btree_map,
        prelude::{prop_assert, prop_assert_eq, proptest},
    };

    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> EnvVars {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn refusing_a_reserved_name_does_not_list_the_reserved_names() {
        for name in [
            "PATH",
            "HOME",
            "LD_PRELOAD",
            "LC_ALL",
            "PYTHONPATH",
            "PYTHONANYTHING",
            "PIP_INDEX_URL",
            "NODE_OPTIONS",
            "NPM_CONFIG_REGISTRY",
            "HTTP_PROXY",
            "MY_PROXY",
            "XDG_CACHE_HOME",
            "_",
            "_X",
            "BAPONI_X",
            "CLOCHE_X",
            "IFS",
            "BASH_ENV",
            "path",
            "ld_preload",
        ] {
            let error = check_level("env_vars", &vars(&[(name, "x")])).unwrap_err();
            assert_eq!(
                error.to_string(),
                "this environment variable name is reserved by the system",
                "{name}"
            );
        }
    }

    #[test]
    fn a_name_that_is_not_an_uppercase_word_is_refused() {
        for name in ["", "lower", "1A", "A-B", "A B", "A=B", "Ä", "A\0", &"X".repeat(129)] {
            assert!(check_level("env_vars", &vars(&[(name, "x")])).is_err(), "{name:?}");
        }
        for name in ["A", "A1_B", "PATHS", "MYPATH", &"X".repeat(128)] {
            assert!(check_level("env_vars", &vars(&[(name, "x")])).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn a_message_names_the_limit_and_the_size() {
        let error = check_level("env_vars", &vars(&[("A", &"x".repeat(5000))])).unwrap_err();
        assert_eq!(error.to_string(), "env_vars: the value of A exceeds 4096 characters, got 5000");
        let many: EnvVars = (0..51).map(|n| (format!("A{n}"), String::new())).collect();
        let error = check_level("env_vars", &many).unwrap_err();
        assert_eq!(error.to_string(), "env_vars exceeds 50 variables, got 51");
    }

    #[test]
    fn the_request_wins_over_the_key_and_the_key_over_the_sandbox() {
        let merged = merge_levels(
            &vars(&[("A", "sandbox"), ("B", "sandbox"), ("C", "sandbox")]),
            &vars(&[("B", "key"), ("C", "key")]),
            &vars(&[("C", "request")]),
        );
        assert_eq!(merged, Ok(vars(&[("A", "sandbox"), ("B", "key"), ("C", "request")])));
    }

    #[test]
    fn levels_that_are_fine_alone_can_be_too_much_together() {
        let level =
            |letter: char| (0..30).map(|n| (format!("{letter}{n}"), String::new())).collect();
        assert!(merge_levels(&level('A'), &level('B'), &EnvVars::new()).is_err());
        assert!(merge_levels(&level('A'), &level('A'), &EnvVars::new()).is_ok());
        let large = |letter: char| -> EnvVars {
            (0..9).map(|n| (format!("{letter}{n}"), "x".repeat(4000))).collect()
        };
        assert!(check_level("env_vars", &large('A')).is_ok());
        assert!(merge_levels(&large('A'), &large('B'), &EnvVars::new()).is_err());
    }

    proptest! {
        #[test]
        fn accepted_variables_can_be_passed_to_execve(
            level in btree_map(".{0,12}", ".{0,12}", 0..4)
        ) {
            if check_level("env_vars", &level).is_ok() {
                for (name, value) in &level {
                    prop_assert!(!name.contains(['=', '\0']) && !value.contains('\0'));
                    prop_assert_eq!(name.is_ascii(), true);
                }
            }
        }
    }
}
