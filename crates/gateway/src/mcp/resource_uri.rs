//! Resource URIs of files: `cloche://executions/ID/files/PATH` and
//! `cloche://threads/ID/files/PATH`.

use cloche_model::{HomePath, ThreadId, TraceId};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The URI template of files of executions.
pub(super) const EXECUTION_FILE_TEMPLATE: &str = "cloche://executions/{trace_id}/files/{+path}";
/// The URI template of files of threads.
pub(super) const THREAD_FILE_TEMPLATE: &str = "cloche://threads/{thread_id}/files/{+path}";

/// A parsed resource URI.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResourceUri {
    /// A file that an execution wrote.
    Execution(TraceId, HomePath),
    /// A file of a thread, in its current state.
    Thread(ThreadId, HomePath),
}

impl ResourceUri {
    /// Parses a URI; `None` if it is not one of a file.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.strip_prefix("cloche://")?.split_once('/')?;
        let (id, path) = rest.split_once("/files/")?;
        let path = HomePath::from_url(&percent_decode_str(path).collect::<Vec<u8>>()).ok()?;
        match kind {
            "executions" => Some(Self::Execution(id.parse().ok()?, path)),
            "threads" => Some(Self::Thread(id.parse().ok()?, path)),
            _ => None,
        }
    }
}

/// The URI of a file that an execution wrote.
pub(super) fn execution_file_uri(trace_id: &TraceId, path: &str) -> String {
    format!("cloche://executions/{trace_id}/files/{}", escape_path(path))
}

/// The URI of a file of a thread.
pub(super) fn thread_file_uri(id: &ThreadId, path: &HomePath) -> String {
    format!("cloche://threads/{id}/files/{}", escape_path(path.as_str()))
}

fn escape_path(path: &str) -> String {
    let segments = path.split('/').map(|name| utf8_percent_encode(name, NON_ALPHANUMERIC));
    segments.map(|name| name.to_string()).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_round_trips_for_every_name() {
        let thread: ThreadId = "a-thread".parse().unwrap();
        for name in ["plot.png", "dir/späte Daten #1?.csv", "100%/files/x", "a%2Fb", r"\xFF"] {
            let path: HomePath = name.parse().unwrap();
            let address = ResourceUri::parse(&thread_file_uri(&thread, &path));
            assert_eq!(address, Some(ResourceUri::Thread(thread.clone(), path)), "{name}");
        }
    }

    #[test]
    fn an_invalid_uri_is_refused() {
        for text in [
            "",
            "file:///etc/passwd",
            "cloche://threads/a/files/",
            "cloche://threads/a/files/../b",
            "cloche://threads/a/files/%2e%2e/b",
            "cloche://threads/a/files/%2fetc",
            "cloche://threads/../files/a",
            "cloche://volumes/a/files/b",
        ] {
            assert_eq!(ResourceUri::parse(text), None, "{text}");
        }
    }
}
