//! Detects the media type of a file: by its name, and for images also by its first bytes.

/// The media type of a file name.
fn media_type_of_name(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    match extension.as_deref() {
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        Some("gif") => "image/gif",
        Some("webp") => "image/webp",
        Some("svg") => "image/svg+xml",
        Some("csv") => "text/csv",
        Some("html" | "htm") => "text/html",
        Some("json") => "application/json",
        Some("md") => "text/markdown",
        Some("pdf") => "application/pdf",
        Some("txt" | "log" | "py" | "js" | "sh") => "text/plain",
        _ => "application/octet-stream",
    }
}

/// Whether the first bytes are needed to detect the type.
pub(super) fn needs_content(name: &str) -> bool {
    is_image(media_type_of_name(name))
}

/// Whether a client would display it as an image.
pub(super) fn is_image(kind: &str) -> bool {
    kind.starts_with("image/")
}

/// How many bytes of the beginning of a file are needed to detect its type.
pub(super) const SNIFF_BYTES: u64 = 4096;

/// The type of a file by its name and its beginning. A file that is named like an image but is none
/// gets its actual type, because model providers refuse a whole conversation with an invalid image.
pub(super) fn detect_media_type(name: &str, beginning: &[u8]) -> &'static str {
    match media_type_of_name(name) {
        kind if is_image(kind) => detect_image(beginning).unwrap_or_else(|| detect_text(beginning)),
        kind => kind,
    }
}

/// The image type with these first bytes.
fn detect_image(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ if is_svg(bytes) => Some("image/svg+xml"),
        _ => None,
    }
}

/// Whether a text begins with an `svg` element, or with what may precede one.
fn is_svg(bytes: &[u8]) -> bool {
    let beginning = &bytes[..bytes.len().min(usize::try_from(SNIFF_BYTES).unwrap_or(usize::MAX))];
    let text = String::from_utf8_lossy(beginning);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let element = |text: &str| {
        let after = text.strip_prefix("<svg").and_then(|rest| rest.chars().next());
        after.is_some_and(|c| c.is_whitespace() || matches!(c, '>' | '/'))
    };
    let before = ["<?xml", "<!--", "<!DOCTYPE svg"].iter().any(|start| text.starts_with(start));
    element(text) || before && text.match_indices("<svg").any(|(at, _)| element(&text[at..]))
}

fn detect_text(bytes: &[u8]) -> &'static str {
    match std::str::from_utf8(bytes) {
        Ok(_) => "text/plain",
        Err(_) => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_detected_by_name_and_content() {
        let png = b"\x89PNG\r\n\x1a\nrest";
        assert_eq!(detect_media_type("a/plot.PNG", png), "image/png");
        assert_eq!(detect_media_type("plot.jpg", png), "image/png");
        assert_eq!(detect_media_type("png", png), "application/octet-stream");
        assert_eq!(detect_media_type("fake.png", b"<html>"), "text/plain");
        assert_eq!(detect_media_type("fake.webp", b"RIFF\xff"), "application/octet-stream");
        assert_eq!(
            detect_media_type("a.svg", b"\xef\xbb\xbf <?xml version='1.0'?><!-- a --><svg\nx=''/>"),
            "image/svg+xml"
        );
        assert_eq!(detect_media_type("a.svg", b"<svg>"), "image/svg+xml");
        assert_eq!(detect_media_type("a.svg", b"an <svg> in text is no image"), "text/plain");
        assert_eq!(detect_media_type("a.csv", b"<svg>"), "text/csv");
    }
}
