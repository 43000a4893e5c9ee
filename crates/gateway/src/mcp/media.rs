//! What kind of file it is, by its name; and for what a client will draw, by its first bytes, too.

/// The type that goes with a name.
pub(super) fn of_name(name: &str) -> &'static str {
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

/// Whether the name says that it is an image.
pub(super) fn is_image(kind: &str) -> bool {
    kind.starts_with("image/")
}

/// Whether the bytes are what the name says. A model's provider refuses a whole conversation for an
/// image that is none.
pub(super) fn is_really(kind: &str, bytes: &[u8]) -> bool {
    match kind {
        "image/png" => bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
        "image/jpeg" => bytes.starts_with(b"\xff\xd8\xff"),
        "image/gif" => bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a"),
        "image/webp" => bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP"),
        "image/svg+xml" => std::str::from_utf8(bytes).is_ok_and(|text| text.contains("<svg")),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_one_by_name_and_by_content() {
        assert_eq!(of_name("a/plot.PNG"), "image/png");
        assert_eq!(of_name("png"), "application/octet-stream");
        assert!(is_really("image/png", b"\x89PNG\r\n\x1a\nrest"));
        assert!(!is_really("image/png", b"<html>") && !is_really("image/webp", b"RIFF"));
        assert!(is_really("image/svg+xml", b"<?xml?><svg/>"));
    }
}
