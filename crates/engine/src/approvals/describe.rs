//! Runs in: server (no capabilities), and `cloche approval`. A call as the person who decides about it
//! reads it: all arguments, each file, and what changed in the home. Every hidden character is visible,
//! and what the agent wrote is indented, so that it cannot pass for a heading.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use cloche_model::{
    Approval, ChangedPath, HomeChanges,
    display::{reveal_hidden, reveal_hidden_in_line},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::startup_files::warning_for;

/// The longest description that a person at an MCP client decides about.
const FORM: usize = 16 << 10;
/// Arguments that are shown line by line.
const TEXTS: [&str; 4] = ["code", "stdin_data", "stdin", "content"];

/// What an approval is about, in full. `None` where there is nothing to read any more.
#[must_use]
pub fn describe_approval(arguments: Option<&str>, changes: Option<&HomeChanges>) -> Option<String> {
    let mut text = describe_arguments(arguments?);
    if let Some(changes) = changes {
        text.push_str(&describe_changes(changes));
    }
    Some(text)
}

/// What the form of an MCP client shows; `None` if that would not be everything. Such a call is decided
/// through `cloche approval` or the admin API.
#[must_use]
pub fn form_text(approval: &Approval) -> Option<String> {
    if approval.changes.as_ref().is_some_and(|changes| !changes.is_complete()) {
        return None;
    }
    let text = describe_approval(approval.arguments.as_deref(), approval.changes.as_ref())?;
    (text.len() <= FORM).then_some(text)
}

fn describe_arguments(text: &str) -> String {
    let Ok(Value::Object(arguments)) = serde_json::from_str(text) else {
        return indented_block("arguments", text);
    };
    let is_row =
        |name: &str| !TEXTS.contains(&name) && !["files", "content_base64"].contains(&name);
    let rows = arguments.iter().filter(|(name, _)| is_row(name));
    let rows: Vec<_> =
        rows.map(|(name, value)| (visible_line(name), row_value(name, value))).collect();
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    let mut shown: String =
        rows.iter().map(|(name, value)| format!("{name:width$}  {value}\n")).collect();
    for name in TEXTS {
        match arguments.get(name) {
            Some(Value::String(text)) => shown.push_str(&indented_block(name, text)),
            Some(other) => shown.push_str(&indented_block(name, &other.to_string())),
            None => {}
        }
    }
    if let Some(Value::String(encoded)) = arguments.get("content_base64") {
        shown.push_str(&encoded_block("content", encoded));
    }
    match arguments.get("files") {
        Some(Value::Array(files)) => shown.extend(files.iter().map(describe_file)),
        Some(other) => shown.push_str(&indented_block("files", &other.to_string())),
        None => {}
    }
    shown
}

fn row_value(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) if name == "path" => {
            format!("{}{}", visible_line(text), mark_path(text))
        }
        Value::String(text) => visible_line(text),
        other => visible_line(&other.to_string()),
    }
}

/// A file that comes with the call.
fn describe_file(file: &Value) -> String {
    let name = file["name"].as_str().unwrap_or_default();
    let title = format!("file {}{}", visible_line(name), mark_path(name));
    match (&file["content"], &file["content_base64"]) {
        (Value::String(text), Value::Null) => {
            indented_block(&format!("{title}, {} bytes", text.len()), text)
        }
        (Value::Null, Value::String(encoded)) => encoded_block(&title, encoded),
        _ => indented_block(&title, &file.to_string()),
    }
}

/// Bytes in base64: as the text that they are, or by size and digest.
fn encoded_block(title: &str, encoded: &str) -> String {
    let Ok(bytes) = STANDARD.decode(encoded) else { return indented_block(title, encoded) };
    let length = bytes.len();
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => {
            indented_block(&format!("{title}, {length} bytes"), &text)
        }
        Ok(text) => binary_line(title, text.as_bytes()),
        Err(error) => binary_line(title, error.as_bytes()),
    }
}

fn binary_line(title: &str, bytes: &[u8]) -> String {
    let digest = hex::encode(Sha256::digest(bytes));
    format!("{title}, {} bytes: !! BINARY, NOT SHOWN, sha256 {digest}\n", bytes.len())
}

fn describe_changes(changes: &HomeChanges) -> String {
    let mut shown = String::new();
    if let Some(note) = &changes.note {
        shown.push_str(&format!("!! {}\n", visible_line(note)));
    }
    let since = match &changes.since {
        Some(id) => format!("since {} was approved", visible_line(id)),
        None => "in all: nothing of this thread was approved before".to_owned(),
    };
    if changes.paths.is_empty() {
        return shown + &format!("the home has no changes {since}\n");
    }
    shown.push_str(&format!("changes of the home {since}:\n"));
    shown.extend(changes.paths.iter().map(describe_path));
    if changes.omitted > 0 {
        shown.push_str(&format!("!! and {} more paths that are NOT SHOWN\n", changes.omitted));
    }
    shown
}

fn describe_path(path: &ChangedPath) -> String {
    let mark =
        path.warning.as_ref().map(|why| format!(" !! RUNS BY ITSELF: {}", visible_line(why)));
    let mark = mark.unwrap_or_default();
    let title = format!("{} {}{mark}", path.change.name(), visible_line(&path.path));
    let size = path.size;
    match (&path.content, &path.target, &path.sha256) {
        (Some(text), ..) => indented_block(&format!("{title}, {size} bytes"), text),
        (None, Some(target), _) => format!("{title}, a link to {}\n", visible_line(target)),
        (None, None, Some(digest)) => {
            let kind = if path.binary { "BINARY, " } else { "" };
            format!("{title}, {size} bytes: !! {kind}NOT SHOWN, sha256 {}\n", visible_line(digest))
        }
        _ if path.change == cloche_model::ChangeKind::Removed => format!("{title}\n"),
        _ => format!("{title}, {size} bytes: !! NOT SHOWN\n"),
    }
}

fn mark_path(path: &str) -> String {
    let path = path.strip_prefix("/home/baponi/").unwrap_or(path);
    let path = path.strip_prefix("./").unwrap_or(path);
    let why = warning_for(path.as_bytes());
    why.map(|why| format!(" !! RUNS BY ITSELF: {why}")).unwrap_or_default()
}

/// A text below its title, each line indented.
fn indented_block(title: &str, text: &str) -> String {
    let lines = reveal_hidden(text);
    let lines = lines.split('\n').map(|line| format!("    {line}\n"));
    format!("{title}:\n{}", lines.collect::<String>())
}

fn visible_line(text: &str) -> String {
    reveal_hidden_in_line(text)
}

#[cfg(test)]
mod tests {
    use cloche_model::ChangeKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn files_and_stdin_of_a_call_are_shown_in_full() {
        let arguments = json!({
            "language": "python", "code": "import helper\nhelper.go()", "stdin_data": "in\u{200b}put",
            "files": [
                {"name": "helper.py", "content": "def go():\n  pass"},
                {"name": "json.py", "content_base64": "eCA9IDE="},
                {"name": "b.bin", "content_base64": "AP8="},
            ],
        });
        let text = describe_approval(Some(&arguments.to_string()), None).unwrap();
        assert_eq!(
            text,
            "language  python\n\
             code:\n    import helper\n    helper.go()\n\
             stdin_data:\n    in\\u{200b}put\n\
             file helper.py, 16 bytes:\n    def go():\n      pass\n\
             file json.py !! RUNS BY ITSELF: Python imports it in place of the module json, 5 \
             bytes:\n    x = 1\n\
             file b.bin, 2 bytes: !! BINARY, NOT SHOWN, sha256 \
             06eb7d6a69ee19e5fbdf749018d3d2abfa04bcbd1365db312eb86dc7169389b8\n"
        );
    }

    #[test]
    fn what_an_agent_wrote_cannot_pass_for_a_heading() {
        let arguments = json!({"path": "a\ncode:", "code": "x\r\ncode:\n    y", "thread_id": "t"});
        let text = describe_approval(Some(&arguments.to_string()), None).unwrap();
        assert_eq!(text.lines().filter(|line| *line == "code:").count(), 1, "{text}");
    }

    #[test]
    fn changes_that_run_by_themselves_are_marked() {
        let path = ChangedPath {
            path: ".bashrc".to_owned(),
            change: ChangeKind::Added,
            size: 4,
            warning: Some("Bash runs it at start".to_owned()),
            target: None,
            sha256: None,
            content: Some("evil".to_owned()),
            binary: false,
        };
        let changes = HomeChanges { paths: vec![path], omitted: 2, ..HomeChanges::default() };
        assert!(!changes.is_complete());
        let text = describe_approval(Some("{}"), Some(&changes)).unwrap();
        let expected = "added .bashrc !! RUNS BY ITSELF: Bash runs it at start, 4 bytes:\n    evil\n\
             !! and 2 more paths that are NOT SHOWN\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
