//! Prints responses of the admin API: small tables, or the JSON itself.

use std::io::{self, Write};

use cloche_engine::describe_approval;
use cloche_model::{HomeChanges, display::reveal_hidden_in_line};
use serde_json::Value;

use super::{AnswerView, client::AdminError};

/// Prints a response.
pub(super) fn print_answer(
    answer: &Value,
    show: &AnswerView,
    json: bool,
) -> Result<(), AdminError> {
    let text = if json { format_json(answer) } else { format_for_people(answer, show) };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader closed the pipe; the request itself has succeeded.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

fn format_json(answer: &Value) -> String {
    match answer {
        Value::Null => String::new(),
        answer => format!("{answer:#}\n"),
    }
}

fn format_for_people(answer: &Value, show: &AnswerView) -> String {
    match show {
        AnswerView::List(name, columns) => {
            let records = answer[name].as_array().map(Vec::as_slice).unwrap_or_default();
            let head = columns.iter().map(|column| column.to_uppercase()).collect();
            let row = |record: &Value| {
                columns.iter().map(|column| format_value(&record[column])).collect()
            };
            align_columns(&std::iter::once(head).chain(records.iter().map(row)).collect::<Vec<_>>())
        }
        AnswerView::Record => format_record(answer),
        AnswerView::NewKey => {
            format!("{}\nthe key is shown only now: store it\n", format_record(answer))
        }
        AnswerView::Defaults => {
            format!(
                "{}\nthese apply to every team without settings of its own\n",
                format_record(answer)
            )
        }
        AnswerView::Approval => format_approval(answer),
        AnswerView::Diff => format_diff(answer),
        AnswerView::Done(sentence) => format!("{sentence}\n"),
    }
}

/// The fields that identify a record, which are printed first.
const FIRST: [&str; 3] = ["id", "name", "key"];

fn format_record(answer: &Value) -> String {
    let fields = answer.as_object().into_iter().flatten();
    let (first, rest): (Vec<_>, Vec<_>) =
        fields.partition(|(name, _)| FIRST.contains(&name.as_str()));
    let rows =
        first.into_iter().chain(rest).map(|(name, value)| vec![name.clone(), format_value(value)]);
    align_columns(&rows.collect::<Vec<_>>())
}

/// An approval request: the record, then everything that determines the call, as every approver
/// sees it.
fn format_approval(answer: &Value) -> String {
    let mut fields = answer.clone();
    let mut remove = |name| fields.as_object_mut().and_then(|fields| fields.remove(name));
    let (arguments, changes) = (remove("arguments"), remove("changes"));
    let text = arguments.as_ref().and_then(Value::as_str);
    let changes: Option<HomeChanges> =
        changes.and_then(|changes| serde_json::from_value(changes).ok());
    let shown = describe_approval(text, changes.as_ref()).unwrap_or_default();
    let bytes = fields["arguments_bytes"].as_u64().unwrap_or_default();
    let cut = text.is_some_and(|text| bytes > text.len() as u64);
    let warning = if cut { "\nthis is incomplete: it was truncated\n" } else { "" };
    format!("{}\n{shown}{warning}", format_record(&fields))
}

/// One path per line, after a sign for the kind of change.
fn format_diff(answer: &Value) -> String {
    let kinds = [("+", "added"), ("~", "changed"), ("-", "removed")];
    let lines = kinds.iter().flat_map(|(sign, name)| {
        let paths = answer[name].as_array().into_iter().flatten();
        paths.map(move |path| format!("{sign} {}\n", format_value(path)))
    });
    let mut text: String = lines.collect();
    if let Some(more @ 1..) = answer["omitted"].as_u64() {
        text.push_str(&format!("and {more} more\n"));
    }
    text
}

/// A value on one line. Values are user input, so hidden characters are made visible.
fn format_value(value: &Value) -> String {
    let text = match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let pair = |(name, value): (&String, &Value)| format!("{name}={}", format_value(value));
            fields.iter().map(pair).collect::<Vec<_>>().join(" ")
        }
        other => other.to_string(),
    };
    let shown = reveal_hidden_in_line(&text);
    if shown.is_empty() { "-".to_owned() } else { shown }
}

/// Columns as wide as their widest cell, separated by two spaces.
fn align_columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}  "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_is_a_table() {
        let answer = json!({"teams": [{"id": "t_1", "name": "a", "n": null}, {"id": "t_22"}]});
        let text = format_for_people(&answer, &AnswerView::List("teams", &["id", "name", "n"]));
        assert_eq!(text, "ID    NAME  N\nt_1   a     -\nt_22  -     -\n");
    }

    #[test]
    fn a_record_begins_with_its_identifying_fields() {
        let text =
            format_for_people(&json!({"created_at": "now", "id": "t_1"}), &AnswerView::Record);
        assert_eq!(text, "id          t_1\ncreated_at  now\n");
    }

    #[test]
    fn code_of_an_approval_is_shown_with_hidden_characters() {
        let arguments = json!({"language": "python", "code": "a = 1\nb\u{202e} = '\u{1b}[2J'"});
        let text = arguments.to_string();
        let answer = json!({"id": "apr_1", "arguments": text, "arguments_bytes": text.len()});
        let shown = format_approval(&answer);
        assert!(
            shown.contains("language  python\ncode:\n    a = 1\n    b\\u{202e} = '\\u{1b}[2J'\n"),
            "{shown}"
        );
        assert!(!shown.contains("it was truncated"), "{shown}");
        let answer = json!({"id": "apr_1", "arguments": "{\"code\": \"a", "arguments_bytes": 999});
        assert!(format_approval(&answer).contains("it was truncated"));
    }

    #[test]
    fn a_diff_has_one_line_per_path() {
        let answer = json!({"added": ["b"], "changed": ["a"], "removed": ["c\n"], "omitted": 2});
        let text = format_for_people(&answer, &AnswerView::Diff);
        assert_eq!(text, "+ b\n~ a\n- c\\u{a}\nand 2 more\n");
    }

    #[test]
    fn control_characters_in_a_value_are_escaped() {
        assert_eq!(format_value(&json!("a\u{1b}[2J\nb")), "a\\u{1b}[2J\\u{a}b");
        assert_eq!(format_value(&json!({"A": "1", "B": ["x", "y"]})), "A=1 B=x,y");
    }
}
