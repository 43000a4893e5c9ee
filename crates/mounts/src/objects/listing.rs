//! Runs in: server (no capabilities), mount server (no capabilities). Removes entries from a list
//! answer that the store's library could not parse.
//!
//! One key with an empty segment, a dot segment or a control character would make the whole listing
//! fail. Such a key has no name in a file system, so it is hidden and counted.

use object_store::path::Path as StorePath;
use quick_xml::{
    Reader,
    events::{BytesRef, Event},
};

/// Elements that are one entry, with the element that has its key. S3 and GCS have the first two,
/// Azure the others.
const ENTRIES: [(&[u8], &[u8]); 4] = [
    (b"Contents", b"Key"),
    (b"CommonPrefixes", b"Prefix"),
    (b"Blob", b"Name"),
    (b"BlobPrefix", b"Name"),
];

/// The answer without entries that have no name, and how many those were; an error for what is no
/// XML.
pub(crate) fn filter_listing(body: &[u8]) -> Result<(Vec<u8>, u64), String> {
    let body = skip_byte_order_marks(body);
    let mut reader = Reader::from_reader(body);
    let (mut kept, mut hidden) = (Vec::with_capacity(body.len()), 0);
    // Where the part that was not copied yet begins.
    let mut copied = 0;
    loop {
        let before = position(&reader);
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let entry = match &event {
            Event::Eof => break,
            Event::Start(start) => {
                let name = start.name();
                ENTRIES.iter().find(|(entry, _)| *entry == name.as_ref())
            }
            _ => None,
        };
        let Some((entry, key)) = entry else { continue };
        let is_kept = read_entry(&mut reader, entry, key)?.is_some_and(|key| is_nameable(&key));
        if !is_kept {
            kept.extend_from_slice(body.get(copied..before).unwrap_or_default());
            copied = position(&reader);
            hidden += 1;
        }
    }
    kept.extend_from_slice(body.get(copied..).unwrap_or_default());
    Ok((kept, hidden))
}

/// The reader skips a mark and does not count its bytes, so positions would be off by three.
fn skip_byte_order_marks(mut body: &[u8]) -> &[u8] {
    while let Some(rest) = body.strip_prefix(b"\xef\xbb\xbf") {
        body = rest;
    }
    body
}

fn position(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}

/// Reads up to the end of an entry. Returns its key; `None` if that is no text.
fn read_entry(
    reader: &mut Reader<&[u8]>,
    entry: &[u8],
    key: &[u8],
) -> Result<Option<String>, String> {
    let (mut text, mut in_key, mut depth) = (Some(String::new()), false, 0_u32);
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Eof => return Err("the answer ends within an entry".to_owned()),
            Event::Start(start) => {
                depth += 1;
                in_key = depth == 1 && start.name().as_ref() == key;
            }
            Event::End(end) if depth == 0 => {
                return match end.name().as_ref() == entry {
                    true => Ok(text),
                    false => Err("the answer has elements that overlap".to_owned()),
                };
            }
            Event::End(_) => {
                depth -= 1;
                in_key = false;
            }
            Event::Text(part) if in_key => append(&mut text, part.decode().ok().as_deref()),
            Event::CData(part) if in_key => append(&mut text, part.decode().ok().as_deref()),
            Event::GeneralRef(part) if in_key => append(&mut text, resolve(&part).as_deref()),
            _ => {}
        }
    }
}

fn append(text: &mut Option<String>, part: Option<&str>) {
    match (text.as_mut(), part) {
        (Some(whole), Some(part)) => whole.push_str(part),
        _ => *text = None,
    }
}

fn resolve(reference: &BytesRef<'_>) -> Option<String> {
    if let Ok(Some(letter)) = reference.resolve_char_ref() {
        return Some(letter.to_string());
    }
    let text = match &**reference {
        b"amp" => "&",
        b"lt" => "<",
        b"gt" => ">",
        b"quot" => "\"",
        b"apos" => "'",
        _ => return None,
    };
    Some(text.to_owned())
}

/// Whether the library reads this key as itself. A `/` at the end is a directory.
fn is_nameable(key: &str) -> bool {
    let body = key.strip_suffix('/').unwrap_or(key);
    !body.is_empty() && StorePath::parse(key).is_ok_and(|parsed| parsed.as_ref() == body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(keys: &[&str]) -> String {
        let entry = |key: &&str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let entries: String = keys.iter().map(entry).collect();
        format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name>{entries}</ListBucketResult>"
        )
    }

    fn filtered(body: &str) -> (String, u64) {
        let (kept, hidden) = filter_listing(body.as_bytes()).unwrap();
        (String::from_utf8(kept).unwrap(), hidden)
    }

    #[test]
    fn keys_without_a_name_are_hidden_and_the_others_are_kept() {
        let odd = ["a//b", "../x", "x/../y", ".", "/abs", "c&#1;d", "n&#10;l", "e/./f", "//"];
        for key in odd {
            let expected = listing(&["ok", "dir/ok.txt", "dir/"]);
            let body = listing(&["ok", key, "dir/ok.txt", "dir/"]);
            assert_eq!(filtered(&body), (expected, 1), "{key}");
        }
        let plain = listing(&["a &amp; b", "100%", "&lt;x&gt;", "&#228;", "..."]);
        assert_eq!(filtered(&plain), (plain.clone(), 0));
    }

    #[test]
    fn prefixes_and_the_names_of_azure_are_filtered_too() {
        let body = "<R><CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes><Blobs><Blob><Name>x//y\
                    </Name><Properties><Name>ok</Name></Properties></Blob><Blob><Name>z</Name></Blob>\
                    </Blobs></R>";
        assert_eq!(filtered(body), ("<R><Blobs><Blob><Name>z</Name></Blob></Blobs></R>".into(), 2));
    }

    #[test]
    fn keys_are_hidden_behind_a_byte_order_mark_too() {
        for marks in ["\u{feff}", "\u{feff}\u{feff}"] {
            let body = format!("{marks}{}", listing(&["ok", "a//b", "z"]));
            assert_eq!(filtered(&body), (listing(&["ok", "z"]), 1));
        }
    }

    #[test]
    fn an_answer_that_is_cut_off_is_an_error() {
        let body = listing(&["a", "b"]);
        for end in [body.len() - 30, body.len() - 40] {
            let cut = &body.as_bytes()[..end];
            assert!(filter_listing(cut).is_err() || filter_listing(cut).unwrap().1 == 0);
        }
        assert!(filter_listing(b"<a><Contents><Key>x</Key>").is_err());
    }
}
