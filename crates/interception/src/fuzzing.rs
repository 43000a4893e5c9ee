//! Runs in: fuzz targets. Heads of requests from bytes, and replies cut into chunks.
//!
//! Both check a property and panic if it does not hold.

use cloche_model::{BrokerRule, BrokeredCredential, Secret};
use hyper::{
    Request, Version,
    header::{AUTHORIZATION, HOST},
};

use crate::{
    redaction::{SecretForms, StreamRedactor},
    request::prepare_request,
    rules::SessionRules,
};

const NAME: &str = "api.example.com";
const VALUE: &str = "sk-live/0123+456789";

fn session_rules() -> Option<SessionRules> {
    let rule = BrokerRule {
        hosts: vec![NAME.parse().ok()?],
        methods: Vec::new(),
        paths: vec!["/v1".to_owned()],
        form: "bearer".parse().ok()?,
    };
    let credential = BrokeredCredential { name: "api".to_owned(), rule, value: Secret::new(VALUE) };
    SessionRules::new(&[credential]).ok()
}

/// The first line is a method and a target, the others are headers; the first byte chooses the
/// version. A request that passes is for the bound host, and has the credential only below `/v1`.
///
/// # Panics
/// If a request passes that must not.
pub fn check_request_head(data: &[u8]) {
    let (Some(rules), Some((first, rest))) = (session_rules(), data.split_first()) else { return };
    let Some(host) = rules.find_host(NAME, 443) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let mut lines = text.lines();
    let Some((method, target)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let version = if first % 2 == 0 { Version::HTTP_11 } else { Version::HTTP_2 };
    let mut builder = Request::builder().version(version).method(method).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        builder = builder.header(name, value.trim());
    }
    let Ok(request) = builder.body(()) else { return };
    let (mut head, ()) = request.into_parts();
    let Ok(has_credential) = prepare_request(&mut head, host) else { return };
    let named = match version {
        Version::HTTP_2 => head.uri.authority().map(|authority| authority.as_str().to_owned()),
        _ => head.headers.get(HOST).and_then(|value| value.to_str().ok()).map(str::to_owned),
    };
    assert_eq!(named.as_deref(), Some(NAME));
    let values: Vec<_> = head.headers.get_all(AUTHORIZATION).iter().collect();
    let secret = format!("Bearer {VALUE}");
    assert_eq!(has_credential, values.iter().any(|value| *value == secret.as_str()));
    assert!(!has_credential || values.len() == 1);
    let decoded = percent_encoding::percent_decode_str(head.uri.path()).decode_utf8_lossy();
    assert!(!has_credential || decoded == "/v1" || decoded.starts_with("/v1/"), "{decoded}");
    assert!(!has_credential || !decoded.contains("/../"), "{decoded}");
}

/// The first byte is the length of chunks. How a reply is cut changes nothing, and the secret is
/// not in it.
///
/// # Panics
/// If it is.
pub fn check_redaction(data: &[u8]) {
    let (Some((first, rest)), Ok(forms)) =
        (data.split_first(), SecretForms::new([VALUE].into_iter()))
    else {
        return;
    };
    let whole = forms.redact(rest).unwrap_or_else(|| rest.to_vec());
    let mut redactor = StreamRedactor::default();
    let mut streamed = Vec::new();
    for chunk in rest.chunks(usize::from(*first).max(1)) {
        streamed.extend(redactor.push(&forms, chunk));
    }
    streamed.extend(redactor.finish());
    assert_eq!(streamed, whole);
    assert_eq!(streamed.len(), rest.len());
    assert!(!streamed.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()));
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn check_seeds(target: &str, check: fn(&[u8])) {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
        let seeds: Vec<_> = fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "there are no seeds");
        seeds.iter().for_each(|seed| check(&fs::read(seed).unwrap()));
    }

    #[test]
    fn seeds_of_the_fuzz_targets_pass() {
        check_seeds("requests", check_request_head);
        check_seeds("redaction", check_redaction);
    }
}
