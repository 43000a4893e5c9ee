//! Runs in: test.
//!
//! The checks of the fuzz targets for input from callers: bodies, tool arguments, ranges and paths;
//! and for requests of guests for web tools.
//!
//! Each function takes arbitrary bytes and panics if a property of a parser does not hold. The test
//! at the end replays the seeds of the repository.

use axum::http::{HeaderMap, HeaderValue, header};
use cloche_agent::NewResponse;
use cloche_engine::{MAX_REQUEST, MAX_RESULTS, MAX_URLS, WebToolCall, parse_cell_request};
use cloche_model::{ExecuteRequest, HomePath, SubPath, ThreadId, WebTool};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    api_types::{CreateResponse, DownloadUrl, ExecuteBody, ListFiles, UploadUrl},
    body,
    error::ApiError,
    http_range::{RequestedRange, parse_range_headers},
    mcp,
};

/// The limit on the message for an invalid request.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// Parses the bytes as the kind of body that the first byte selects. An accepted body is within all
/// limits of the contract; the message for a refused one is short.
pub fn check_body(bytes: &[u8]) {
    let Some((which, body)) = bytes.split_first() else { return };
    check_depth(body);
    match which % 7 {
        0 => {
            let Some(body) = read_body::<ExecuteBody>(body) else { return };
            ok_or_check_message(ExecuteRequest::try_from(body)).into_iter().for_each(check_execute);
        }
        1 => {
            let Some(list) = read_body::<ListFiles>(body) else { return };
            list.path.iter().for_each(|path| check_home_path(path));
        }
        2 => {
            let Some(upload) = read_body::<UploadUrl>(body) else { return };
            check_home_path(&upload.path);
        }
        3 => {
            let Some(download) = read_body::<DownloadUrl>(body) else { return };
            check_home_path(&download.path);
        }
        4 => {
            let Some(body) = read_body::<CreateResponse>(body) else { return };
            ok_or_check_message(NewResponse::try_from(body));
        }
        5 => match parse_object(body).map(mcp::fuzzing::read_execute) {
            Some(Ok(request)) => check_execute(request),
            Some(Err(message)) => check_message(&message),
            None => {}
        },
        _ => match parse_object(body).map(mcp::fuzzing::read_write) {
            Some(Ok((thread, path))) => {
                drop(thread.parse::<ThreadId>());
                check_home_path(&path);
            }
            Some(Err(message)) => check_message(&message),
            None => {}
        },
    }
}

/// Parses the bytes as a request of a guest for a web tool. An accepted request is within the limits
/// of a call; the message for a refused one is short.
pub fn check_tool_request(bytes: &[u8]) {
    match parse_cell_request(bytes) {
        Ok(WebToolCall::Search { tool, query, count }) => {
            assert!(tool != WebTool::FetchUrl && !query.trim().is_empty() && query.len() <= 2_000);
            assert!((1..=MAX_RESULTS).contains(&count) && bytes.len() <= MAX_REQUEST);
        }
        Ok(WebToolCall::Fetch { urls }) => {
            assert!((1..=MAX_URLS).contains(&urls.len()) && bytes.len() <= MAX_REQUEST);
            assert!(urls.iter().all(|url| url.len() <= 4_096));
        }
        Err(error) => check_message(&error.message),
    }
}

/// Parses the bytes as the kind of input that the first byte selects: range headers, a path of a
/// home, the path of a URL, or the sub-paths of a request. A range is never empty and lies within
/// the file. A path never leads out of the home, and round-trips.
pub fn check_path(bytes: &[u8]) {
    let Some((which, rest)) = bytes.split_first() else { return };
    let text = String::from_utf8_lossy(rest);
    match which % 5 {
        0 => check_range(rest),
        1 => check_home_path(&text),
        2 => {
            if let Ok(path) = HomePath::from_url(rest) {
                check_home_path(path.as_str());
            }
            // Every path of a home round-trips through its text form.
            assert_eq!(HomePath::bytes_of(&HomePath::text_of(rest)), rest);
        }
        3 => {
            let entries: Vec<String> = text.split('\n').map(str::to_owned).collect();
            let Some(paths) = ok_or_check_message(SubPath::parse_all(&entries)) else { return };
            assert!(paths.len() == entries.len() && paths.len() <= 10);
            for (path, entry) in paths.iter().zip(&entries) {
                let whole = format!("/data/{}/{}", path.slug(), path.path());
                assert!(*entry == whole || *entry == format!("{whole}/"), "{entry:?}");
                let plain = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
                assert!(!path.slug().contains(['/', '.']) && path.path().split('/').all(plain));
            }
        }
        _ => mcp::fuzzing::check_resource_uri(&text),
    }
}

fn check_range(bytes: &[u8]) {
    let Some((size, text)) = bytes.split_first_chunk() else { return };
    let size = u64::from_le_bytes(*size);
    let mut lines = text.splitn(2, |&byte| byte == b'\n');
    let mut headers = HeaderMap::new();
    for (name, value) in [header::RANGE, header::IF_RANGE].into_iter().zip(&mut lines) {
        let Ok(value) = HeaderValue::from_bytes(value) else { return };
        headers.insert(name, value);
    }
    match parse_range_headers(&headers, size, "\"t\"") {
        RequestedRange::Part(part) => {
            assert!(part.start < part.end && part.end <= size, "{part:?} {size}")
        }
        RequestedRange::All | RequestedRange::Unsatisfiable => {}
    }
    headers.insert(header::IF_RANGE, HeaderValue::from_static("\"another\""));
    assert_eq!(parse_range_headers(&headers, size, "\"t\""), RequestedRange::All);
}

fn check_home_path(text: &str) {
    if let Ok(Some(directory)) = HomePath::parse_directory(text) {
        check_plain(&directory);
    }
    if let Some(path) = ok_or_check_message(text.parse::<HomePath>()) {
        check_plain(&path);
        assert_eq!(HomePath::bytes_of(path.as_str()), path.as_bytes());
        // The text form of a path parses to the same path.
        if let Some(again) = ok_or_check_message(path.as_str().parse::<HomePath>()) {
            assert_eq!(again.as_bytes(), path.as_bytes(), "{text:?}");
        } else {
            panic!("a path whose text form does not parse: {text:?}");
        }
    }
}

fn check_plain(path: &HomePath) {
    let bytes = path.as_bytes();
    assert!(!bytes.is_empty() && bytes.len() <= HomePath::MAX_BYTES && !bytes.contains(&0));
    let odd = |name: &[u8]| matches!(name, b"" | b"." | b"..") || name.len() > 255;
    assert!(!bytes.split(|&byte| byte == b'/').any(odd), "{path}");
}

fn check_execute(request: ExecuteRequest) {
    let Some(request) = ok_or_check_message(request.check()) else { return };
    assert!(!request.code.is_empty() && request.code.len() <= 1 << 20);
    assert!(request.stdin.len() <= 1 << 20 && request.files.len() <= 32);
    assert!(!request.timeout.is_zero() && request.timeout.as_secs() <= 365 * 86_400);
    assert!(request.metadata.len() <= 10 && request.env.len() <= 50);
    let mut names: Vec<&str> = request.files.iter().map(|file| file.name.as_str()).collect();
    let plain = |name: &&str| !name.contains(['/', '\0']) && !matches!(*name, "" | "." | "..");
    assert!(names.iter().all(plain) && names.iter().all(|name| name.len() <= 255));
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "two files with one name");
    for (name, value) in &request.env {
        assert!(!name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0'));
        assert!(!name.starts_with("LD_") && !name.starts_with("PYTHON"));
    }
    if let Some(url) = &request.webhook_url {
        assert!(url.starts_with("https://") && url.len() <= 4 * 2048);
    }
}

/// An accepted body is no deeper than the limit, whatever type it is parsed as.
fn check_depth(body: &[u8]) {
    if body::measure_shape(body) != body::BodyShape::Fine {
        return;
    }
    if let Ok(value) = serde_json::from_slice::<Value>(body) {
        assert!(json_depth(&value) <= 64);
    }
}

fn json_depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(json_depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(json_depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn read_body<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match body::parse_json(bytes) {
        Ok(body) => Some(body),
        Err(error) => {
            check_message(match &error {
                ApiError::Http(_, _, message) => message,
                ApiError::Refused(refusal) => &refusal.message,
            });
            None
        }
    }
}

fn parse_object(bytes: &[u8]) -> Option<rmcp::model::JsonObject> {
    serde_json::from_slice(bytes).ok()
}

fn ok_or_check_message<T>(result: Result<T, cloche_model::Invalid>) -> Option<T> {
    result.map_err(|why| check_message(&why.to_string())).ok()
}

fn check_message(message: &str) {
    assert!(!message.is_empty() && message.len() <= MAX_MESSAGE_BYTES, "{} bytes", message.len());
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Changes, duplicates or removes a few bytes; deterministic for each number.
    fn mutate(mut bytes: Vec<u8>, mut number: u64) -> Vec<u8> {
        let mut next = |below: usize| {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            usize::try_from(number % below.max(1) as u64).unwrap()
        };
        for _ in 0..=next(4) {
            let (at, kind, byte) = (next(bytes.len()), next(4), next(256));
            match kind {
                0 if !bytes.is_empty() => bytes[at] = u8::try_from(byte).unwrap(),
                1 if !bytes.is_empty() => drop(bytes.remove(at)),
                2 => bytes.insert(at, u8::try_from(byte).unwrap()),
                _ => bytes.extend_from_within(at..),
            }
        }
        bytes
    }

    /// The name of a target and its check.
    type FuzzCheck = (&'static str, fn(&[u8]));

    #[test]
    fn fuzz_seeds_and_mutations_of_them_pass() {
        let all: [FuzzCheck; 3] =
            [("bodies", check_body), ("paths", check_path), ("tool_request", check_tool_request)];
        for (target, check) in all {
            let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
            let seeds: Vec<_> =
                fs::read_dir(seeds).unwrap().map(|seed| seed.unwrap().path()).collect();
            assert!(!seeds.is_empty(), "{target} has no seeds");
            for seed in seeds.iter().map(|seed| fs::read(seed).unwrap()) {
                check(&seed);
                (1..1000).for_each(|number| check(&mutate(seed.clone(), number)));
            }
        }
    }
}
