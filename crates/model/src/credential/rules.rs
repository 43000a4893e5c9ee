//! The rules for credentials: names of hosts, headers and parameters, and values.

use super::{BrokerRule, CredentialDelivery, CredentialForm, InjectionTarget};
use crate::{EnvVars, HostName, Invalid, Secret, env};

/// The limit on hosts, methods and paths of a credential.
const MOST_RULES: usize = 32;
/// The limit on characters of a path.
const MOST_PATH_CHARS: usize = 512;
/// The limits on bytes of a brokered value. A short one would be found in replies by chance, and
/// redacted there.
const BROKERED_BYTES: std::ops::RangeInclusive<usize> = 8..=8192;
/// The limit on bytes of an injected file.
const MOST_FILE_BYTES: usize = 64 << 10;
/// The limit on bytes of the names of headers and parameters.
const MOST_NAME_BYTES: usize = 64;
/// Headers that frame, route or authenticate the connection itself.
const FORBIDDEN_HEADERS: [&str; 19] = [
    "accept-encoding",
    "connection",
    "content-length",
    "content-encoding",
    "content-type",
    "expect",
    "forwarded",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// Checks the value of a credential for what is done with it. Messages never contain the value.
///
/// # Errors
/// On the first rule that is broken.
pub fn check_credential_value(
    delivery: &CredentialDelivery,
    value: &Secret,
) -> Result<(), Invalid> {
    let value = value.reveal();
    match delivery {
        CredentialDelivery::Brokered(rule) => check_brokered_value(rule, value),
        CredentialDelivery::Injected(InjectionTarget::Env(name)) => {
            let vars = EnvVars::from([(name.clone(), value.to_owned())]);
            env::check_level("value", &vars)?;
            check_not_empty(value)
        }
        CredentialDelivery::Injected(InjectionTarget::File(_)) => {
            if value.len() > MOST_FILE_BYTES {
                let (most, length) = (MOST_FILE_BYTES, value.len());
                let message = format!("value must have at most {most} bytes, got {length}");
                return Err(Invalid::new(message));
            }
            if value.contains('\0') {
                return Err(Invalid::new("value contains a null byte"));
            }
            check_not_empty(value)
        }
    }
}

fn check_not_empty(value: &str) -> Result<(), Invalid> {
    match value.is_empty() {
        true => Err(Invalid::new("value must not be empty")),
        false => Ok(()),
    }
}

fn check_brokered_value(rule: &BrokerRule, value: &str) -> Result<(), Invalid> {
    let (least, most) = (BROKERED_BYTES.start(), BROKERED_BYTES.end());
    if !BROKERED_BYTES.contains(&value.len()) {
        let length = value.len();
        let message = format!(
            "value of a brokered credential must have {least} to {most} bytes, got {length}"
        );
        return Err(Invalid::new(message));
    }
    // It becomes a header: a line break would add another one.
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(Invalid::new(
            "value of a brokered credential must be printable ASCII without line breaks; remove \
             the final newline, or inject it as a file",
        ));
    }
    if value.trim() != value {
        return Err(Invalid::new("value must not begin or end with a space"));
    }
    if rule.form == CredentialForm::Basic && !value.contains(':') {
        return Err(Invalid::new("value of a basic credential must be user:password"));
    }
    Ok(())
}

pub(super) fn check_delivery(delivery: &CredentialDelivery) -> Result<(), Invalid> {
    match delivery {
        CredentialDelivery::Brokered(rule) => check_broker_rule(rule),
        CredentialDelivery::Injected(InjectionTarget::Env(name)) => {
            env::check_level("env", &EnvVars::from([(name.clone(), String::new())]))
        }
        CredentialDelivery::Injected(InjectionTarget::File(name)) => {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            match name.as_str().starts_with('.') || !name.as_str().chars().all(plain) {
                false => Ok(()),
                true => Err(Invalid::new(
                    "file must be letters, digits, dots, hyphens and underscores, and not begin \
                     with a dot",
                )),
            }
        }
    }
}

fn check_broker_rule(rule: &BrokerRule) -> Result<(), Invalid> {
    if rule.hosts.is_empty() {
        return Err(Invalid::new("hosts: a brokered credential needs at least one host"));
    }
    for (field, count) in
        [("hosts", rule.hosts.len()), ("methods", rule.methods.len()), ("paths", rule.paths.len())]
    {
        if count > MOST_RULES {
            return Err(Invalid::new(format!(
                "{field} must have at most {MOST_RULES} entries, got {count}"
            )));
        }
    }
    rule.methods.iter().try_for_each(|method| check_method(method))?;
    rule.paths.iter().try_for_each(|path| check_path(path))
}

fn check_method(method: &str) -> Result<(), Invalid> {
    let plain = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !plain || method.len() > 32 {
        return Err(Invalid::new("methods: a method must be upper-case letters, such as GET"));
    }
    match method {
        "TRACE" | "CONNECT" => {
            Err(Invalid::new(format!("methods: {method} never carries a credential")))
        }
        _ => Ok(()),
    }
}

/// A prefix has no escapes and no dot segments, so it has one spelling.
fn check_path(path: &str) -> Result<(), Invalid> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~!$&'()*+,;=:@".contains(c);
    let dots = path.split('/').any(|segment| matches!(segment, "." | ".."));
    let good = path.starts_with('/') && path.len() <= MOST_PATH_CHARS && path.chars().all(plain);
    match good && !dots && !path.contains("//") {
        true => Ok(()),
        false => Err(Invalid::new(
            "paths: a path must begin with a slash, without escapes, dot segments, queries or \
             empty segments",
        )),
    }
}

/// An exact name of at least two labels.
pub(super) fn check_host_name(name: &str) -> Result<HostName, Invalid> {
    let parsed = name.parse::<HostName>().ok().filter(|name| name.as_str().contains('.'));
    parsed.ok_or_else(|| {
        Invalid::new(
            "hosts: a host must be an exact name such as api.example.com, with a port if it is not \
             443; addresses and wildcards are not allowed",
        )
    })
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// A header name, in lower case.
pub(super) fn check_header_name(name: &str) -> Result<String, Invalid> {
    let name = name.to_ascii_lowercase();
    if name.is_empty() || name.len() > MOST_NAME_BYTES || !name.bytes().all(is_token_byte) {
        return Err(Invalid::new(format!(
            "form: a header name must be 1 to {MOST_NAME_BYTES} characters of a token"
        )));
    }
    if FORBIDDEN_HEADERS.contains(&name.as_str()) || name.starts_with("sec-") {
        return Err(Invalid::new(format!(
            "form: the header {name} belongs to the connection and cannot carry a credential"
        )));
    }
    Ok(name)
}

pub(super) fn check_parameter_name(name: &str) -> Result<String, Invalid> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    if name.is_empty() || name.len() > MOST_NAME_BYTES || !name.bytes().all(plain) {
        return Err(Invalid::new(format!(
            "form: a query parameter must be 1 to {MOST_NAME_BYTES} letters, digits, hyphens, \
             dots, underscores or tildes"
        )));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CredentialHost;

    fn brokered(form: &str) -> CredentialDelivery {
        CredentialDelivery::Brokered(BrokerRule {
            hosts: vec!["api.example.com".parse().unwrap()],
            methods: Vec::new(),
            paths: Vec::new(),
            form: form.parse().unwrap(),
        })
    }

    #[test]
    fn a_host_is_an_exact_name_with_a_port() {
        let host = |text: &str| text.parse::<CredentialHost>().map(|host| host.to_string());
        assert_eq!(host("API.Example.com"), Ok("api.example.com".to_owned()));
        assert_eq!(host("api.example.com:443"), Ok("api.example.com".to_owned()));
        assert_eq!(host("api.example.com:8443"), Ok("api.example.com:8443".to_owned()));
        for wrong in [
            "",
            "example",
            "*.example.com",
            "10.0.0.1",
            "[::1]",
            "a.b:0",
            "a.b:65536",
            "a.b:+1",
            "a..b",
            "-a.b",
            "a.b/c",
            "a b.c",
            "a.b:1:2",
            "user@a.b",
            "a.1",
        ] {
            assert!(host(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_form_cannot_name_a_header_of_the_connection() {
        for form in ["bearer", "basic", "header X-Api-Key", "query api_key"] {
            assert!(form.parse::<CredentialForm>().is_ok(), "{form}");
        }
        for form in [
            "",
            "Bearer",
            "header",
            "header ",
            "header Host",
            "header content-length",
            "header te",
            "header Sec-WebSocket-Key",
            "header a b",
            "header a:b",
            "header a\r\nb",
            "query",
            "query a=b",
            "query a&b",
            "cookie a",
        ] {
            assert!(form.parse::<CredentialForm>().is_err(), "{form:?}");
        }
    }

    #[test]
    fn a_brokered_value_cannot_add_a_header() {
        let check = |form: &str, value: &str| {
            check_credential_value(&brokered(form), &Secret::new(value)).map_err(|e| e.to_string())
        };
        assert_eq!(check("bearer", "sk-0123456789"), Ok(()));
        assert_eq!(check("basic", "user:password"), Ok(()));
        for value in
            ["short", "with\r\nX-Other: 1", "with\nnewline", "nul\0inside", " leading-space"]
        {
            let error = check("header X-Key", value).unwrap_err();
            assert!(!error.contains(value), "{error}");
        }
        assert!(check("basic", "no-colon-inside").is_err());
    }

    #[test]
    fn an_injected_variable_obeys_the_rules_for_variables() {
        let env = |name: &str| {
            check_delivery(&CredentialDelivery::Injected(InjectionTarget::Env(name.to_owned())))
        };
        assert_eq!(env("DATABASE_URL"), Ok(()));
        for reserved in ["PATH", "LD_PRELOAD", "CLOCHE_X", "", "A=B"] {
            assert!(env(reserved).is_err(), "{reserved:?}");
        }
        let file = |name: &str| {
            let name = crate::FileName::try_from(name.to_owned()).unwrap();
            check_delivery(&CredentialDelivery::Injected(InjectionTarget::File(name)))
        };
        assert_eq!(file("key.pem"), Ok(()));
        assert!(file(".hidden").is_err() && file("a b").is_err());
    }

    #[test]
    fn a_path_prefix_has_one_spelling() {
        for path in ["/", "/v1", "/v1/chat/"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for path in ["", "v1", "/a/../b", "/a/./b", "/a//b", "/%61", "/a?b", "/a b", "/a\\b"] {
            assert!(check_path(path).is_err(), "{path:?}");
        }
    }
}
