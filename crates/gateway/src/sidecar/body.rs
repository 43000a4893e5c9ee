//! The body of `POST /execute`. The first five fields are the contract's. Unknown fields are
//! ignored.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_engine::{
    JobRequest,
    sidecar::{JobHome, JobLimits},
};
use cloche_model::{EnvVars, Invalid, Language, RequestFile};
use serde::Deserialize;

use crate::api_types::number::whole;

#[derive(Debug, Deserialize)]
pub(super) struct JobBody {
    code: String,
    language: Option<String>,
    stdin: Option<String>,
    #[serde(default, deserialize_with = "whole")]
    timeout_ms: Option<i64>,
    files: Option<Vec<FileBody>>,
    /// Extension: environment variables.
    env: Option<EnvVars>,
    /// Extension: exact limits.
    limits: Option<JobLimits>,
    /// Extension: whether the interpreter may be forked from a shared template.
    template: Option<bool>,
    /// Extension: a tag; jobs with the same tag may share a template.
    pool_group: Option<String>,
    /// Extension: the home of a thread, in a layer store that is shared with the client.
    home: Option<JobHome>,
}

/// A file: its content as text or in base64.
#[derive(Debug, Deserialize)]
struct FileBody {
    name: String,
    content: Option<String>,
    content_base64: Option<String>,
}

impl TryFrom<JobBody> for JobRequest {
    type Error = Invalid;

    fn try_from(body: JobBody) -> Result<Self, Invalid> {
        let files =
            body.files.map(|files| files.into_iter().enumerate().map(decode_file).collect());
        Ok(Self {
            code: body.code,
            language: body.language.map(engine_language),
            stdin: body.stdin,
            timeout_ms: body.timeout_ms,
            files: files.transpose()?,
            env: body.env,
            limits: body.limits.unwrap_or_default(),
            template: body.template,
            pool_group: body.pool_group,
            home: body.home,
        })
    }
}

/// The engine's name of a language. The tool's contract calls Node.js `javascript`.
fn engine_language(name: String) -> String {
    if name == "javascript" { Language::Node.name().to_owned() } else { name }
}

fn decode_file((index, body): (usize, FileBody)) -> Result<RequestFile, Invalid> {
    let content = match (body.content, body.content_base64) {
        (Some(text), None) => text.into_bytes(),
        (None, Some(base64)) => STANDARD.decode(base64).map_err(|error| {
            Invalid::new(format!("files[{index}].content_base64 is not base64: {error}"))
        })?,
        (None, None) => {
            return Err(Invalid::new(format!("files[{index}] needs content or content_base64")));
        }
        (Some(_), Some(_)) => {
            return Err(Invalid::new(format!(
                "files[{index}] has both content and content_base64; one is enough"
            )));
        }
    };
    Ok(RequestFile { name: body.name, content })
}
