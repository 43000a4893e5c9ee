//! Runs in: fuzz targets. Entry points to the parsers of this crate.

/// The filter of list answers. What it keeps is parsed the same way again.
pub fn filter_list_answer(data: &[u8]) {
    if let Ok((kept, _)) = crate::objects::filter_listing(data) {
        let again = crate::objects::filter_listing(&kept);
        assert!(again.is_ok_and(|(again, hidden)| again == kept && hidden == 0));
    }
}

/// Paths of objects: what is accepted has no way out of its prefix.
pub fn parse_object_path(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(path) = crate::ObjectPath::parse(text) {
        assert!(path.as_str().split('/').all(|name| !matches!(name, "." | "..")));
        assert!(path.is_root() || path.as_str().split('/').all(|name| !name.is_empty()));
    }
}
