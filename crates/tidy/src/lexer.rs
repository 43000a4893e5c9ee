//! Just enough of Rust's lexer to tell code from comments and strings.

/// The text with comments, strings and character literals blanked out; lines stay where they are.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = skip_non_code(&chars, at);
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

/// Whether a line of code has this word: not a part of a longer name.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(start, _)| {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        !line[..start].ends_with(is_name) && !line[start + word.len()..].starts_with(is_name)
    })
}

/// Where the comment or literal that starts here ends; `at` itself if it is code.
fn skip_non_code(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    let after_name = at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_');
    match chars[at] {
        '/' if next == Some('/') => find_char(chars, at, |c| c == '\n'),
        '/' if next == Some('*') => skip_block_comment(chars, at),
        '"' => skip_string(chars, at + 1),
        'b' | 'c' if next == Some('"') && !after_name => skip_string(chars, at + 2),
        'r' if !after_name => skip_raw_string(chars, at, at + 1),
        'b' | 'c' if next == Some('r') && !after_name => skip_raw_string(chars, at, at + 2),
        '\'' => skip_character(chars, at),
        _ => at,
    }
}

fn find_char(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    chars[from..].iter().position(|&c| wanted(c)).map_or(chars.len(), |found| from + found)
}

/// Block comments nest.
fn skip_block_comment(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(chars.len())
}

fn skip_string(chars: &[char], mut at: usize) -> usize {
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// `r"…"` or `r#"…"#`; a raw identifier such as `r#type` is code.
fn skip_raw_string(chars: &[char], start: usize, after_r: usize) -> usize {
    let open = find_char(chars, after_r, |c| c != '#');
    if chars.get(open) != Some(&'"') {
        return start;
    }
    let hashes = open - after_r;
    let closes = |at: usize| {
        chars[at] == '"' && chars[at + 1..].iter().take_while(|&&c| c == '#').count() >= hashes
    };
    let end = (open + 1..chars.len()).find(|&at| closes(at));
    end.map_or(chars.len(), |quote| quote + 1 + hashes)
}

/// `'x'` and `'\n'` are literals; `'a` is a lifetime.
fn skip_character(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            (find_char(chars, (at + 3).min(chars.len()), |c| c == '\'') + 1).min(chars.len())
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::{code_only, has_word};

    fn words(text: &str) -> String {
        code_only(text).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(words("a // unsafe\nb /* x /* unsafe */ y */ c"), "a b c");
    }

    #[test]
    fn strings_are_not_code() {
        assert_eq!(words(r#"f("unsafe \" unsafe", b"x", g)"#), "f( , , g)");
        assert_eq!(words("f(r#\"un\"safe\"#, br\"\\\", c\"x\", h)"), "f( , , , h)");
    }

    #[test]
    fn lifetimes_and_characters_are_told_apart() {
        assert_eq!(
            words(r#"fn f<'a>(x: &'a str) { ['"', '\'', '\u{41}', 'x'] }"#),
            "fn f<'a>(x: &'a str) { [ , , , ] }"
        );
    }

    #[test]
    fn raw_identifiers_are_code() {
        assert_eq!(words("r#type r2 bar\"x\""), "r#type r2 bar");
    }

    #[test]
    fn lines_stay_where_they_are() {
        assert_eq!(code_only("a\n\"x\ny\"\nb").lines().count(), 4);
    }

    #[test]
    fn unfinished_literals_do_not_panic() {
        for text in ["\"", "'", "'\\", "/*", "r#\"", "\"\\", "b'", "r", "'\\'"] {
            let _ = code_only(text);
        }
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert!(has_word("x = unsafe {", "unsafe"));
        assert!(!has_word("#![deny(unsafe_code)]", "unsafe"));
        assert!(!has_word("not_unsafe", "unsafe"));
    }
}
