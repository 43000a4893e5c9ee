//! A request to execute code, before admission.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{EnvVars, FileName, InputFile, Invalid, Language, SubPath, ThreadId, env};

/// The limit on bytes of code.
pub const MAX_CODE_BYTES: usize = 1 << 20;
/// The refusal of code that is empty or too long, in the words of the contract.
pub const CODE_LENGTH: &str = "code must be between 1 byte and 1 MB";
/// The limit on bytes of standard input.
pub const MAX_STDIN_BYTES: usize = 1 << 20;
/// The limit on files of a request.
pub const MAX_FILES: usize = 32;
/// The limit on bytes of all files together.
pub const MAX_FILES_BYTES: usize = 8 << 20;
/// The timeout of an execution whose request has none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest timeout that any plan allows: one year.
pub const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);
/// The limit on metadata keys.
pub const MAX_METADATA_KEYS: usize = 10;
/// The limit on characters of a metadata key.
pub const MAX_METADATA_KEY_CHARS: usize = 40;
/// The limit on characters of a metadata value.
pub const MAX_METADATA_VALUE_CHARS: usize = 256;
/// The limit on characters of a webhook URL.
pub const MAX_WEBHOOK_URL_CHARS: usize = 2048;

/// An execution as requested. Nothing in it has been checked.
#[derive(Clone, Debug, Default)]
pub struct ExecuteRequest {
    /// The program.
    pub code: String,
    /// Its language; Python if absent.
    pub language: Option<String>,
    /// The timeout in seconds; 60 if absent.
    pub timeout: Option<i64>,
    /// The timeout in milliseconds, for entry points that use them. A request has at most one of
    /// the two.
    pub timeout_ms: Option<i64>,
    /// The thread whose home it uses.
    pub thread_id: Option<String>,
    /// Labels for finding the execution.
    pub metadata: Option<BTreeMap<String, String>>,
    /// The URL that the result is posted to, in webhook mode.
    pub webhook_url: Option<String>,
    /// Environment variables for this execution only.
    pub env_vars: Option<EnvVars>,
    /// Storage paths that narrow the mounts.
    pub sub_paths: Option<Vec<String>>,
    /// The standard input of the program.
    pub stdin: Option<String>,
    /// Files written to the home before the program starts.
    pub files: Option<Vec<RequestFile>>,
}

/// A file in a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFile {
    /// Its name in the home.
    pub name: String,
    /// Its content.
    pub content: Vec<u8>,
}

/// A request in which every field is valid. Admission decides separately whether it may run.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// The program.
    pub code: String,
    /// Its language.
    pub language: Language,
    /// The timeout.
    pub timeout: Duration,
    /// The thread whose home it uses.
    pub thread: Option<ThreadId>,
    /// Labels for finding the execution.
    pub metadata: BTreeMap<String, String>,
    /// The URL that the result is posted to; its host is not checked yet.
    pub webhook_url: Option<String>,
    /// Environment variables of the request.
    pub env: EnvVars,
    /// Well-formed storage paths; whether they are mounted is not checked yet.
    pub sub_paths: Vec<SubPath>,
    /// The standard input of the program.
    pub stdin: Vec<u8>,
    /// Files written to the home before the program starts; names are unique.
    pub files: Vec<InputFile>,
}

impl ExecuteRequest {
    /// Checks each field against its own rule.
    ///
    /// # Errors
    /// On the first field that breaks its rule, with a message for the caller.
    pub fn check(self) -> Result<CheckedRequest, Invalid> {
        check_code(&self.code)?;
        let language = check_language(self.language.as_deref())?;
        let timeout = check_timeout(self.timeout, self.timeout_ms)?;
        let thread = self.thread_id.as_deref().map(str::parse).transpose()?;
        let metadata = self.metadata.unwrap_or_default();
        check_metadata(&metadata)?;
        if let Some(url) = &self.webhook_url {
            check_webhook_url("webhook_url", url)?;
        }
        let env = self.env_vars.unwrap_or_default();
        env::check_level("env_vars", &env)?;
        let sub_paths = SubPath::parse_all(&self.sub_paths.unwrap_or_default())?;
        let stdin = check_stdin(self.stdin)?;
        let files = check_files(self.files.unwrap_or_default(), language)?;
        Ok(CheckedRequest {
            code: self.code,
            language,
            timeout,
            thread,
            metadata,
            webhook_url: self.webhook_url,
            env,
            sub_paths,
            stdin,
            files,
        })
    }
}

fn check_code(code: &str) -> Result<(), Invalid> {
    if code.is_empty() || code.len() > MAX_CODE_BYTES {
        return Err(Invalid::new(CODE_LENGTH));
    }
    Ok(())
}

fn check_stdin(stdin: Option<String>) -> Result<Vec<u8>, Invalid> {
    let stdin = stdin.unwrap_or_default().into_bytes();
    if stdin.len() > MAX_STDIN_BYTES {
        let got = stdin.len();
        return Err(Invalid::new(format!("stdin must be at most 1 MB, got {got} bytes")));
    }
    Ok(stdin)
}

fn check_files(files: Vec<RequestFile>, language: Language) -> Result<Vec<InputFile>, Invalid> {
    if files.len() > MAX_FILES {
        let got = files.len();
        return Err(Invalid::new(format!("files exceeds {MAX_FILES} entries, got {got}")));
    }
    let total: usize = files.iter().map(|file| file.content.len()).sum();
    if total > MAX_FILES_BYTES {
        return Err(Invalid::new(format!("files must be at most 8 MB in all, got {total} bytes")));
    }
    let mut seen = BTreeSet::new();
    let mut checked = Vec::with_capacity(files.len());
    for RequestFile { name, content } in files {
        let name = FileName::try_from(name).map_err(|why| Invalid::new(format!("files: {why}")))?;
        if name.as_str() == language.main_file() {
            return Err(Invalid::new(format!("files: {name} is the name of the program itself")));
        }
        if !seen.insert(name.clone()) {
            return Err(Invalid::new(format!("files: {name} is listed twice")));
        }
        checked.push(InputFile { name, content });
    }
    Ok(checked)
}

fn check_language(language: Option<&str>) -> Result<Language, Invalid> {
    let Some(name) = language else { return Ok(Language::Python) };
    name.parse().map_err(|_| {
        let shown: String = name.chars().take(32).collect();
        Invalid::new(format!("language must be one of: python, node, bash; got {shown:?}"))
    })
}

fn check_timeout(seconds: Option<i64>, millis: Option<i64>) -> Result<Duration, Invalid> {
    let (name, unit, asked, most, exact): (_, _, _, _, fn(u64) -> Duration) =
        match (seconds, millis) {
            (None, None) => return Ok(DEFAULT_TIMEOUT),
            (Some(_), Some(_)) => {
                return Err(Invalid::new("give timeout or timeout_ms, not both"));
            }
            (Some(asked), None) => (
                "timeout",
                " seconds",
                asked,
                u128::from(MAX_TIMEOUT.as_secs()),
                Duration::from_secs,
            ),
            (None, Some(asked)) => {
                ("timeout_ms", "", asked, MAX_TIMEOUT.as_millis(), Duration::from_millis)
            }
        };
    u64::try_from(asked)
        .ok()
        .filter(|asked| (1..=most).contains(&u128::from(*asked)))
        .map(exact)
        .ok_or_else(|| {
            Invalid::new(format!("{name} must be between 1 and {most}{unit}, got {asked}"))
        })
}

/// Checks the metadata of a request.
///
/// # Errors
/// On the first rule that is broken.
pub fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), Invalid> {
    if metadata.len() > MAX_METADATA_KEYS {
        return Err(Invalid::new(format!(
            "metadata exceeds {MAX_METADATA_KEYS} keys, got {}",
            metadata.len()
        )));
    }
    for (key, value) in metadata {
        check_metadata_key(key)?;
        let chars = value.chars().count();
        if chars > MAX_METADATA_VALUE_CHARS {
            return Err(Invalid::new(format!(
                "metadata: the value of {key:?} exceeds {MAX_METADATA_VALUE_CHARS} characters, got \
                 {chars}"
            )));
        }
    }
    Ok(())
}

/// Checks one metadata key.
///
/// # Errors
/// When it is empty, too long, or contains a character that is not allowed.
pub fn check_metadata_key(key: &str) -> Result<(), Invalid> {
    let chars = key.chars().count();
    if chars == 0 || chars > MAX_METADATA_KEY_CHARS {
        return Err(Invalid::new(format!(
            "metadata: a key must be 1 to {MAX_METADATA_KEY_CHARS} characters, got {chars}"
        )));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if !key.starts_with(|c: char| c.is_ascii_alphanumeric()) || !key.chars().all(plain) {
        return Err(Invalid::new(format!(
            "metadata: the key {key:?} must start with a letter or digit and contain only letters, \
             digits, underscores, hyphens and dots"
        )));
    }
    Ok(())
}

/// Checks the form of a webhook URL. Its address is checked later, after name resolution.
///
/// # Errors
/// When it is too long or not HTTPS.
pub fn check_webhook_url(field: &str, url: &str) -> Result<(), Invalid> {
    let chars = url.chars().count();
    if chars > MAX_WEBHOOK_URL_CHARS {
        return Err(Invalid::new(format!(
            "{field} exceeds {MAX_WEBHOOK_URL_CHARS} characters, got {chars}"
        )));
    }
    if !url.starts_with("https://") {
        return Err(Invalid::new(format!("{field} must use HTTPS")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ExecuteRequest {
        ExecuteRequest { code: "print(1)".to_owned(), ..ExecuteRequest::default() }
    }

    fn refusal(request: ExecuteRequest) -> String {
        request.check().unwrap_err().to_string()
    }

    #[test]
    fn absent_fields_get_their_defaults() {
        let checked = request().check().unwrap();
        assert_eq!(checked.language, Language::Python);
        assert_eq!(checked.timeout, Duration::from_secs(60));
        assert!(checked.thread.is_none() && checked.metadata.is_empty() && checked.env.is_empty());
    }

    #[test]
    fn code_must_be_one_byte_to_one_mebibyte() {
        let sized = |bytes| ExecuteRequest { code: "x".repeat(bytes), ..request() };
        assert!(sized(1).check().is_ok());
        assert!(sized(1 << 20).check().is_ok());
        assert_eq!(refusal(sized(0)), "code must be between 1 byte and 1 MB");
        assert_eq!(refusal(sized((1 << 20) + 1)), "code must be between 1 byte and 1 MB");
    }

    #[test]
    fn a_timeout_must_be_at_least_a_second() {
        for seconds in [0, -1, i64::MIN, i64::MAX] {
            let asked = ExecuteRequest { timeout: Some(seconds), ..request() };
            assert!(refusal(asked).starts_with("timeout must be between 1 and"), "{seconds}");
        }
    }

    #[test]
    fn a_timeout_can_be_in_milliseconds() {
        let asked = |millis| ExecuteRequest { timeout_ms: Some(millis), ..request() };
        assert_eq!(asked(5).check().unwrap().timeout, Duration::from_millis(5));
        assert_eq!(refusal(asked(0)), "timeout_ms must be between 1 and 31536000000, got 0");
        let both = ExecuteRequest { timeout: Some(1), ..asked(5) };
        assert_eq!(refusal(both), "give timeout or timeout_ms, not both");
    }

    #[test]
    fn an_unknown_language_is_named_in_the_error() {
        let asked = ExecuteRequest { language: Some("cobol".to_owned()), ..request() };
        assert_eq!(refusal(asked), "language must be one of: python, node, bash; got \"cobol\"");
    }

    #[test]
    fn metadata_beyond_its_limits_is_refused() {
        let with = |pairs: Vec<(String, String)>| ExecuteRequest {
            metadata: Some(pairs.into_iter().collect()),
            ..request()
        };
        let many = (0..11).map(|n| (format!("k{n}"), String::new())).collect();
        assert_eq!(refusal(with(many)), "metadata exceeds 10 keys, got 11");
        let long = with(vec![("k".repeat(41), String::new())]);
        assert_eq!(refusal(long), "metadata: a key must be 1 to 40 characters, got 41");
        let value = with(vec![("k".to_owned(), "ä".repeat(257))]);
        assert_eq!(refusal(value), "metadata: the value of \"k\" exceeds 256 characters, got 257");
        assert!(with(vec![("k".to_owned(), "ä".repeat(256))]).check().is_ok());
        for key in ["", "-a", ".a", "a b", "a/b", "ä"] {
            assert!(with(vec![(key.to_owned(), String::new())]).check().is_err(), "{key:?}");
        }
    }

    #[test]
    fn files_must_have_plain_unique_names_and_bounded_size() {
        let file = |name: &str| RequestFile { name: name.to_owned(), content: vec![1] };
        let with = |files: Vec<RequestFile>| ExecuteRequest { files: Some(files), ..request() };
        assert_eq!(with(vec![file("a"), file("b")]).check().unwrap().files.len(), 2);
        assert_eq!(refusal(with(vec![file("../a")])), "files: \"../a\" is not a plain file name");
        assert_eq!(refusal(with(vec![file("a"), file("a")])), "files: a is listed twice");
        let main = refusal(with(vec![file("main.py")]));
        assert_eq!(main, "files: main.py is the name of the program itself");
        assert!(refusal(with(vec![file("a"); 33])).starts_with("files exceeds 32 entries"));
        let large = RequestFile { name: "a".into(), content: vec![0; MAX_FILES_BYTES + 1] };
        assert!(refusal(with(vec![large])).starts_with("files must be at most 8 MB"));
        let input = ExecuteRequest { stdin: Some("x".repeat(MAX_STDIN_BYTES + 1)), ..request() };
        assert!(refusal(input).starts_with("stdin must be at most 1 MB"));
    }

    #[test]
    fn a_webhook_url_must_use_https() {
        let with = |url: &str| ExecuteRequest { webhook_url: Some(url.to_owned()), ..request() };
        assert_eq!(refusal(with("http://a.example")), "webhook_url must use HTTPS");
        assert!(with("https://a.example/hook").check().is_ok());
        let long = format!("https://a.example/{}", "x".repeat(2048));
        assert!(refusal(with(&long)).starts_with("webhook_url exceeds 2048 characters"));
    }
}
