//! Runs in: server (no capabilities), command line.
//!
//! Makes text from agents and guests safe to show. Every character that is invisible, or that would
//! move other characters, is written as an escape.
//!
//! This is the one implementation for terminals, forms of MCP clients, tables and reports. It does
//! not know where the text is shown.

use std::fmt::Write;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// The most combining marks on one letter that are shown unescaped.
const MARKS_ON_A_LETTER: usize = 4;

/// Escapes hidden characters in text of any number of lines. `\n` and `\t` stay. A hidden character
/// is written like `\u{200b}`.
#[must_use]
pub fn reveal_hidden(text: &str) -> String {
    reveal_hidden_except(text, &['\n', '\t'])
}

/// Like [`reveal_hidden`] for a single line: line breaks and tabs are escaped as well.
#[must_use]
pub fn reveal_hidden_in_line(text: &str) -> String {
    reveal_hidden_except(text, &[])
}

/// Whether a character is invisible, or changes how its neighbours are shown.
#[must_use]
pub fn is_hidden(c: char) -> bool {
    match c {
        ' '..='~' => false,
        // Letters and marks that have no width or look like a space. No general category covers
        // them.
        '\u{34f}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{2800}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{ffa0}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        c => matches!(
            c.general_category(),
            GeneralCategory::Control
                | GeneralCategory::Format
                | GeneralCategory::LineSeparator
                | GeneralCategory::ParagraphSeparator
                | GeneralCategory::SpaceSeparator
                | GeneralCategory::PrivateUse
                | GeneralCategory::Surrogate
                | GeneralCategory::Unassigned
        ),
    }
}

fn is_mark(c: char) -> bool {
    let category = c.general_category();
    matches!(category, GeneralCategory::NonspacingMark | GeneralCategory::EnclosingMark)
}

fn reveal_hidden_except(text: &str, kept: &[char]) -> String {
    let mut shown = String::with_capacity(text.len());
    // How many more marks the last shown character may carry; zero at the start.
    let mut marks_left = 0;
    for c in text.chars() {
        if kept.contains(&c) {
            shown.push(c);
            marks_left = 0;
        } else if is_hidden(c) {
            push_escape(c, &mut shown);
            marks_left = 0;
        } else if !c.is_ascii() && is_mark(c) {
            if marks_left == 0 {
                push_escape(c, &mut shown);
            } else {
                shown.push(c);
                marks_left -= 1;
            }
        } else {
            shown.push(c);
            marks_left = MARKS_ON_A_LETTER;
        }
    }
    shown
}

fn push_escape(c: char, shown: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// Every kind of character that can hide something: first, last, description.
    const HIDDEN: &[(u32, u32, &str)] = &[
        (0x00, 0x08, "C0"),
        (0x0b, 0x1f, "C0, with carriage return and escape"),
        (0x7f, 0x9f, "delete and C1, with CSI"),
        (0xa0, 0xa0, "no-break space"),
        (0xad, 0xad, "soft hyphen"),
        (0x34f, 0x34f, "combining grapheme joiner"),
        (0x61c, 0x61c, "Arabic letter mark"),
        (0x115f, 0x1160, "Hangul fillers"),
        (0x17b4, 0x17b5, "Khmer vowels without a shape"),
        (0x180b, 0x180f, "Mongolian variation selectors"),
        (0x2000, 0x200a, "spaces of other widths"),
        (0x200b, 0x200f, "zero width, and direction marks"),
        (0x2028, 0x2029, "line and paragraph separators"),
        (0x202a, 0x202e, "bidi embeddings and overrides"),
        (0x2060, 0x2065, "word joiner and invisible operators"),
        (0x2066, 0x2069, "bidi isolates"),
        (0x206a, 0x206f, "deprecated format characters"),
        (0x2800, 0x2800, "the braille pattern without dots"),
        (0x3000, 0x3000, "ideographic space"),
        (0x3164, 0x3164, "Hangul filler"),
        (0xe000, 0xe0ff, "private use"),
        (0xfdd0, 0xfdef, "noncharacters"),
        (0xfe00, 0xfe0f, "variation selectors"),
        (0xfeff, 0xfeff, "byte order mark"),
        (0xffa0, 0xffa0, "halfwidth Hangul filler"),
        (0xfff0, 0xfffb, "unassigned, and interlinear annotation"),
        (0xfffe, 0xffff, "noncharacters"),
        (0x1d173, 0x1d17a, "musical format characters"),
        (0xe0000, 0xe007f, "tags"),
        (0xe0100, 0xe01ef, "more variation selectors"),
        (0xf0000, 0xf00ff, "private use"),
        (0x10fffe, 0x10ffff, "the last noncharacters"),
    ];

    #[test]
    fn every_hidden_code_point_is_shown_as_an_escape() {
        for (first, last, what) in HIDDEN {
            for c in (*first..=*last).filter_map(char::from_u32) {
                let expected = format!("a\\u{{{:x}}}b", u32::from(c));
                assert_eq!(reveal_hidden(&format!("a{c}b")), expected, "{what}");
                assert_eq!(reveal_hidden_in_line(&format!("a{c}b")), expected, "{what}");
            }
        }
    }

    #[test]
    fn terminal_escapes_are_shown_and_not_obeyed() {
        let hostile = "\u{1b}]0;title\u{7}\u{1b}[2Ja\rb\u{9b}31m\u{202e}x\u{7f}\n\tend";
        let shown = "\\u{1b}]0;title\\u{7}\\u{1b}[2Ja\\u{d}b\\u{9b}31m\\u{202e}x\\u{7f}\n\tend";
        assert_eq!(reveal_hidden(hostile), shown);
        assert_eq!(reveal_hidden_in_line("a\n\tb"), "a\\u{a}\\u{9}b");
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        for text in ["print('ä €') # 你好, עברית, العربية", "e\u{301}, \u{928}\u{93f}", "✓ → 🦀"]
        {
            assert_eq!(reveal_hidden(text), text);
        }
    }

    #[test]
    fn combining_marks_cannot_pile_up_or_stand_on_nothing() {
        let pile = format!("a{}", "\u{336}".repeat(6));
        let shown = format!("a{}\\u{{336}}\\u{{336}}", "\u{336}".repeat(4));
        assert_eq!(reveal_hidden(&pile), shown);
        assert_eq!(reveal_hidden("\u{301}a\n\u{301}"), "\\u{301}a\n\\u{301}");
    }

    proptest! {
        #[test]
        fn hidden_characters_are_escaped_and_visible_ones_kept(text in any::<String>()) {
            let shown = reveal_hidden(&text);
            prop_assert!(!shown.chars().any(|c| is_hidden(c) && c != '\n' && c != '\t'));
            let ascii = |text: &str| text.chars().filter(char::is_ascii_uppercase).count();
            prop_assert_eq!(ascii(&shown), ascii(&text));
            prop_assert_eq!(reveal_hidden(&shown), shown);
        }
    }
}
