//! Files on the wire: files of a request, files that an execution wrote, files of a thread.

use base64::{
    Engine as _, alphabet,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use cloche_engine::{FileInfo, FilePage, SignedToken, format_rfc3339};
use cloche_model::{Invalid, OutputFile, RequestFile};
use serde::{Deserialize, Serialize};
use utoipa::{
    ToSchema,
    openapi::schema::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type},
};

use super::number::{whole, whole_number};

/// A lenient base64 decoder that ignores unused trailing bits.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A file of a request; exactly one of the two contents is set.
#[derive(Debug, Deserialize)]
pub(crate) struct InputFileBody {
    name: String,
    content: Option<String>,
    content_base64: Option<String>,
}

impl TryFrom<InputFileBody> for RequestFile {
    type Error = Invalid;

    fn try_from(body: InputFileBody) -> Result<Self, Invalid> {
        let shown: String = body.name.chars().take(64).collect();
        let content = match (body.content, body.content_base64) {
            (Some(content), None) => content.into_bytes(),
            (None, Some(encoded)) => BASE64.decode(encoded).map_err(|_| {
                Invalid::new(format!("files: content_base64 of {shown:?} is not base64"))
            })?,
            _ => {
                return Err(Invalid::new(format!(
                    "files: {shown:?} must have exactly one of content and content_base64"
                )));
            }
        };
        Ok(Self { name: body.name, content })
    }
}

/// The schema of input files. Each entry has one of two forms.
pub(in crate::api_types) fn input_files_schema() -> Schema {
    const PLAIN: &str = r"^([^/\\\x00-\x1f\x7f-\x9f.]|\.[^/\\\x00-\x1f\x7f-\x9f.]|\.\.[^/\\\x00-\x1f\x7f-\x9f])[^/\\\x00-\x1f\x7f-\x9f]{0,60}$";
    const ENCODED: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$";
    let text = || ObjectBuilder::new().schema_type(Type::String);
    let entry = |field: &str, content: ObjectBuilder, other: &str| {
        ObjectBuilder::new()
            .schema_type(Type::Object)
            .property("name", text().pattern(Some(PLAIN)))
            .property(field, content)
            .property(other, ObjectBuilder::new().schema_type(Type::Null))
            .required("name")
            .required(field)
    };
    let entry = OneOfBuilder::new()
        .item(entry("content", text().max_length(Some(8 << 20)), "content_base64"))
        .item(entry("content_base64", text().pattern(Some(ENCODED)), "content"));
    let mut array = ArrayBuilder::new().items(entry).max_items(Some(32)).unique_items(true).build();
    array.schema_type = SchemaType::from_iter([Type::Array, Type::Null]);
    Schema::Array(array)
}

/// A file that an execution wrote.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutputFileRecord {
    /// Its path below the home, in the form that the download call accepts. A byte that is not
    /// valid UTF-8 is written as `\xFF`.
    name: String,
    /// Its size.
    size: u64,
    /// Whether only a part of it was kept.
    truncated: bool,
}

impl From<OutputFile> for OutputFileRecord {
    fn from(file: OutputFile) -> Self {
        Self { name: file.name, size: file.size, truncated: file.truncated }
    }
}

/// The files that an execution wrote.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OutputFiles {
    /// The files, sorted by name.
    pub(crate) files: Vec<OutputFileRecord>,
    /// How many written files are not listed.
    pub(crate) omitted: u64,
}

/// Where files are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SourceName {
    /// The home of a thread.
    #[default]
    Thread,
    /// A volume that the key is bound to.
    Volume,
}

/// A pattern for a name that is neither empty nor `.` nor `..`.
const NAME: &str = r"([^/\x00.]|\.[^/\x00.]|\.\.[^/\x00])[^/\x00]{0,60}";

/// The schema of a path: names separated by `/`.
fn path_schema() -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(format!("^{NAME}(/{NAME}){{0,15}}$")))
        .examples(["results/table.csv"])
        .into()
}

/// The schema of a directory: a path, or the home itself.
fn directory_schema() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .pattern(Some(format!("^(|/|{NAME}(/{NAME}){{0,15}}/?)$")))
        .examples(["results"])
        .into()
}

fn content_type_schema() -> Schema {
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .pattern(Some("^[a-z]{1,40}/[a-z0-9.+-]{1,80}$"))
        .examples(["text/csv"])
        .into()
}

/// A request to list files.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ListFiles {
    #[serde(default)]
    pub(crate) source: SourceName,
    /// The thread, or the name of the volume.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(crate) id: String,
    /// Only this file, or the files below this directory.
    #[schema(schema_with = directory_schema)]
    pub(crate) path: Option<String>,
    /// The maximum number of files; 10,000 if absent.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1, maximum = 10_000)]
    pub(crate) limit: Option<u32>,
    /// Only files after this path, which is the last one of the previous page.
    #[schema(max_length = 4095)]
    pub(crate) after: Option<String>,
}

/// A request for an upload URL.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct UploadUrl {
    #[serde(default)]
    pub(crate) source: SourceName,
    /// The thread, which is created if it does not exist, or the name of the volume.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(crate) id: String,
    /// The path of the file.
    #[schema(schema_with = path_schema)]
    pub(crate) path: String,
    /// Its exact size.
    #[serde(deserialize_with = "whole_number")]
    #[schema(minimum = 0, maximum = 10_737_418_240_u64)]
    pub(crate) content_length: u64,
    /// The content type that the upload will have; `application/octet-stream` if absent.
    #[schema(schema_with = content_type_schema)]
    pub(crate) content_type: Option<String>,
}

/// A request for a download URL.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DownloadUrl {
    #[serde(default)]
    pub(crate) source: SourceName,
    /// The thread, or the name of the volume.
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    pub(crate) id: String,
    /// The path of the file.
    #[schema(schema_with = path_schema)]
    pub(crate) path: String,
}

/// A URL that permits one method on one file for a limited time, without a key.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SignedUrl {
    /// The URL.
    url: String,
    /// The method: `PUT` or `GET`.
    method: &'static str,
    /// Headers that the request must have.
    headers: Vec<SignedUrlHeader>,
    /// When it expires.
    #[schema(format = DateTime)]
    expires_at: String,
}

/// A header that the request must have.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SignedUrlHeader {
    name: String,
    value: String,
}

impl SignedUrl {
    pub(crate) fn for_download(base: &str, signed: &SignedToken) -> Self {
        Self::new(base, "GET", signed)
    }

    pub(crate) fn for_upload(base: &str, signed: &SignedToken, content_type: String) -> Self {
        let header = SignedUrlHeader { name: "Content-Type".to_owned(), value: content_type };
        Self { headers: vec![header], ..Self::new(base, "PUT", signed) }
    }

    fn new(base: &str, method: &'static str, signed: &SignedToken) -> Self {
        Self {
            url: format!("{base}/v1/files/transfer/{}", signed.token),
            method,
            headers: Vec::new(),
            expires_at: format_rfc3339(signed.expires_at),
        }
    }
}

/// A file of a thread or volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileRecord {
    /// Its path below the home or in the volume, in the form that `download_url` accepts. A byte that is not valid
    /// UTF-8 is written as `\xFF`.
    path: String,
    /// Its size.
    size: u64,
    /// When it was last written.
    #[schema(format = DateTime)]
    modified: String,
}

impl From<FileInfo> for FileRecord {
    fn from(file: FileInfo) -> Self {
        Self { path: file.path, size: file.size, modified: format_rfc3339(file.modified) }
    }
}

/// A page of files of a thread or volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileList {
    /// Regular files, sorted by path.
    files: Vec<FileRecord>,
    /// The `after` of the next page; null on the last page.
    next: Option<String>,
    /// How many files were omitted because their paths are too long for a request.
    unnamed: u64,
}

impl From<FilePage> for FileList {
    fn from(page: FilePage) -> Self {
        let files = page.files.into_iter().map(FileRecord::from).collect();
        Self { files, next: page.next, unnamed: page.unnamed }
    }
}

/// A file that was uploaded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Uploaded {
    /// Its path below the home.
    pub(crate) path: String,
    /// Its size.
    pub(crate) size: u64,
}
