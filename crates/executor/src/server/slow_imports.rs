//! Runs in: server (no capabilities). Looks whether a program names a module of the standard library
//! whose import takes longer than most programs.
//!
//! The answer only chooses between cells that behave alike: the pool has cells whose template has
//! imported these modules ahead. A wrong answer costs time, nothing else.

/// The modules, as their importers name them. All of them wait in the same template.
pub(super) const SLOW_IMPORTS: [&str; 2] = ["asyncio", "urllib.request"];

/// The part of a program that is looked at. Imports stand at the beginning.
const LOOKED_AT: usize = 64 << 10;

/// Whether a program imports one of these modules, beside those that its cells have imported ahead.
pub(super) fn names_slow_import(code: &[u8], preload: &[String]) -> bool {
    let code = String::from_utf8_lossy(&code[..code.len().min(LOOKED_AT)]);
    code.lines().map(str::trim_start).any(|line| {
        let is_import = line.starts_with("import ") || line.starts_with("from ");
        is_import
            && SLOW_IMPORTS
                .iter()
                .any(|module| line.contains(module) && !preload.iter().any(|known| known == module))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_are_found_wherever_they_stand() {
        for code in [
            "import asyncio",
            "import os, asyncio\n",
            "def main():\n    import asyncio as a\n",
            "from asyncio import gather",
            "from urllib.request import urlopen",
        ] {
            assert!(names_slow_import(code.as_bytes(), &[]), "{code}");
        }
    }

    #[test]
    fn a_program_that_imports_none_needs_no_other_cell() {
        for code in ["", "print('asyncio')", "import json", "import urllib.parse"] {
            assert!(!names_slow_import(code.as_bytes(), &[]), "{code}");
        }
        assert!(!names_slow_import(b"import asyncio", &["asyncio".to_owned()]));
        let late = format!("#{}\nimport asyncio", "é".repeat(LOOKED_AT));
        assert!(!names_slow_import(late.as_bytes(), &[]));
    }
}
