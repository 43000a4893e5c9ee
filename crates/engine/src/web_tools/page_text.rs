//! Runs in: server (no capabilities).
//!
//! The text of a page: which kinds of content are read, and HTML as Markdown.

use encoding_rs::{Encoding, UTF_8};
use html2text::config;

use super::call::cut_text;

/// Columns of a line. Paragraphs are wrapped as in a mail.
const WIDTH: usize = 100;
/// The most bytes of a title.
const MAX_TITLE: usize = 500;
/// How far a page is searched for its title and its character set.
const HEAD: usize = 64 << 10;
/// The most elements of an HTML page. Converting takes memory for each.
const MAX_ELEMENTS: usize = 50_000;
/// The most elements that are open at once, and the most tables. The time to parse grows with the
/// product of elements and depth; the time to lay out tables grows faster.
const MAX_DEPTH: usize = 150;
const MAX_TABLE_DEPTH: usize = 10;
/// Elements that never contain others, or that the next one of their kind ends.
const NOT_NESTED: [&str; 30] = [
    "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta",
    "optgroup", "option", "p", "param", "path", "rp", "rt", "source", "tbody", "td", "tfoot", "th",
    "thead", "tr", "track", "use", "wbr",
];

/// What is done with the content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// Converted to Markdown.
    Html,
    /// Returned as it is.
    Text,
}

impl ContentKind {
    /// The kind of a content type; `None` for one that has no text.
    pub(super) fn of_type(content_type: &str) -> Option<Self> {
        let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "text/html" | "application/xhtml+xml" => Some(Self::Html),
            "application/json"
            | "application/xml"
            | "application/javascript"
            | "application/yaml"
            | "application/toml"
            | "application/x-ndjson" => Some(Self::Text),
            kind if kind.starts_with("text/") => Some(Self::Text),
            kind if kind.ends_with("+json") || kind.ends_with("+xml") => Some(Self::Text),
            _ => None,
        }
    }
}

/// The title and the text of a page, and whether the text was cut.
pub(super) struct PageText {
    pub(super) title: String,
    pub(super) text: String,
    pub(super) is_cut: bool,
}

/// Reads a page. This takes a while for a large one, so it runs on a thread of its own.
pub(super) fn read_page(
    kind: ContentKind,
    content_type: &str,
    bytes: &[u8],
    most: usize,
) -> Result<PageText, String> {
    let source = decode_text(content_type, bytes);
    let (title, text) = match kind {
        ContentKind::Text => (String::new(), source),
        ContentKind::Html => {
            check_structure(&source)?;
            (read_title(&source), html_to_text(&source)?)
        }
    };
    let is_cut = text.len() > most;
    Ok(PageText { title, text: cut_text(text, most), is_cut })
}

/// Refuses a page whose conversion could take too long. It counts tags without parsing, so text in
/// scripts counts as well.
fn check_structure(source: &str) -> Result<(), String> {
    let (mut depth, mut tables) = (0_usize, 0_usize);
    for (number, tag) in source.split('<').skip(1).enumerate() {
        if number >= MAX_ELEMENTS {
            return Err(format!("the page has more than {MAX_ELEMENTS} elements"));
        }
        let (name, closes) = match tag.strip_prefix('/') {
            Some(name) => (name, true),
            None => (tag, false),
        };
        let end = name.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(name.len());
        let name = name[..end.min(16)].to_ascii_lowercase();
        if name.is_empty() || NOT_NESTED.contains(&&name[..]) {
            continue;
        }
        let is_table = usize::from(name == "table");
        (depth, tables) = match closes {
            true => (depth.saturating_sub(1), tables.saturating_sub(is_table)),
            false => (depth + 1, tables + is_table),
        };
        if depth > MAX_DEPTH || tables > MAX_TABLE_DEPTH {
            return Err("the elements of the page are nested too deeply".to_owned());
        }
    }
    Ok(())
}

/// The bytes as text: by a byte order mark, the content type, or the page's own word; else UTF-8.
fn decode_text(content_type: &str, bytes: &[u8]) -> String {
    let named = find_charset(content_type).or_else(|| {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).to_ascii_lowercase();
        find_charset(&head)
    });
    let (text, ..) = named.unwrap_or(UTF_8).decode(bytes);
    text.into_owned()
}

fn find_charset(text: &str) -> Option<&'static Encoding> {
    let text = text.to_ascii_lowercase();
    let (_, after) = text.split_once("charset=")?;
    let label = after.trim_start_matches(['"', '\'', ' ']);
    let is_label = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.');
    let end = label.find(|c: char| !is_label(c)).unwrap_or(label.len());
    Encoding::for_label(&label.as_bytes()[..end])
}

/// The text of the first title element.
fn read_title(source: &str) -> String {
    let head = &source[..source.floor_char_boundary(HEAD)];
    let lower = head.to_ascii_lowercase();
    let found = lower.find("<title").and_then(|at| {
        let from = at + lower[at..].find('>')? + 1;
        Some((from, from + lower[from..].find("</title")?))
    });
    let Some((from, to)) = found else { return String::new() };
    // Entities are decoded as in any other text. A title has no elements.
    let text = head[from..to].replace('<', "&lt;");
    let text = html_to_text(&text).unwrap_or_default();
    cut_text(text.split_whitespace().collect::<Vec<_>>().join(" "), MAX_TITLE)
}

fn html_to_text(source: &str) -> Result<String, String> {
    let converted = config::plain()
        .allow_width_overflow()
        .string_from_read(source.as_bytes(), WIDTH)
        .map_err(|error| format!("the page cannot be read: {error}"))?;
    Ok(converted.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn read(html: &str) -> PageText {
        read_page(ContentKind::Html, "text/html", html.as_bytes(), 10_000).unwrap()
    }

    #[test]
    fn html_is_read_as_markdown_without_scripts() {
        let page = read(
            "<html><head><title>A &amp; B\n c</title><script>evil()</script><style>x{}</style>\
             </head><body><h1>Head</h1><p>One <a href='https://a.example/'>link</a>.</p>\
             <ul><li>x</li></ul><script>more()</script></body></html>",
        );
        assert_eq!(page.title, "A & B c");
        assert!(page.text.starts_with("# Head"), "{}", page.text);
        assert!(page.text.contains("[link]") && page.text.contains("https://a.example/"));
        assert!(page.text.contains("* x") && !page.text.contains("evil"), "{}", page.text);
        assert!(!page.text.contains("more()") && !page.text.contains("x{}"), "{}", page.text);
    }

    #[test]
    fn character_sets_are_heeded() {
        let latin = b"<meta charset=iso-8859-1><p>caf\xe9</p>";
        let page = read_page(ContentKind::Html, "text/html", latin, 100).unwrap();
        assert_eq!(page.text, "café");
        let page = read_page(ContentKind::Text, "text/plain; charset=\"windows-1252\"", b"\x80", 9);
        assert_eq!(page.unwrap().text, "€");
        let page = read_page(ContentKind::Text, "text/plain; charset=nonsense", b"\xff", 9);
        assert_eq!(page.unwrap().text, "\u{fffd}");
    }

    #[test]
    fn long_text_is_cut_at_a_character() {
        let page = read_page(ContentKind::Text, "text/plain", "éé".as_bytes(), 3).unwrap();
        assert_eq!((&page.text[..], page.is_cut), ("é", true));
    }

    #[test]
    fn hostile_html_takes_bounded_time() {
        let begun = Instant::now();
        let deep = "<div><b><ul><li>".repeat(20_000);
        let wide = format!("<table><tr>{}</tr></table>", "<td colspan=1000>x".repeat(200));
        let nested = "<table><tr><td>".repeat(300);
        let reopened: String = (0..5_000).map(|id| format!("<p><b id={id}></p>")).collect();
        for html in [&deep, &nested, &reopened] {
            let refused = read_page(ContentKind::Html, "text/html", html.as_bytes(), 1000);
            assert!(refused.err().unwrap().contains("nested too deeply"));
        }
        let allowed = format!("{}{}", "<div>".repeat(140), "<p>x".repeat(10_000));
        let tables = "<table><tr><td>x".repeat(10);
        for html in [wide, allowed, tables, "<".repeat(40_000), "&amp".repeat(100_000)] {
            let _ = read_page(ContentKind::Html, "text/html", html.as_bytes(), 1000);
        }
        let many = "<p>".repeat(MAX_ELEMENTS + 1);
        assert!(read_page(ContentKind::Html, "text/html", many.as_bytes(), 9).is_err());
        assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    }

    #[test]
    fn only_content_with_text_is_read() {
        for kind in ["text/html; charset=x", "application/xhtml+xml"] {
            assert_eq!(ContentKind::of_type(kind), Some(ContentKind::Html));
        }
        for kind in ["text/plain", "application/json", "application/ld+json", "image/svg+xml"] {
            assert_eq!(ContentKind::of_type(kind), Some(ContentKind::Text));
        }
        for kind in ["image/png", "application/octet-stream", "application/zip", ""] {
            assert_eq!(ContentKind::of_type(kind), None);
        }
    }
}
