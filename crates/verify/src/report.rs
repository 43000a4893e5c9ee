//! How findings are shown: a table for people, JSON for programs. Nothing a guest printed can
//! reach a terminal as more than plain text.

use std::io::{self, Write};

use cloche_model::display::reveal_hidden_in_line;
use serde::Serialize;

/// One line of the report.
#[derive(Debug, Serialize)]
pub struct ProbeRow {
    /// The name of the probe.
    pub probe: &'static str,
    /// What the probe is aimed at.
    pub group: &'static str,
    /// How the sandbox came about: from nothing, or forked from a template.
    pub cell: CellOrigin,
    /// What is seen where the wall holds.
    pub expected: &'static str,
    /// What was seen.
    pub got: String,
    /// Whether the wall held.
    pub held: bool,
}

/// How a sandbox came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CellOrigin {
    /// From nothing.
    Cold,
    /// Parked before it was asked for; Python's are forked from a template.
    Warm,
}

/// The whole of it.
#[derive(Debug, Serialize)]
pub struct VerifyReport {
    /// One line for each probe and kind of cell.
    pub probes: Vec<ProbeRow>,
    /// How many held.
    pub held: usize,
    /// How many broke.
    pub broke: usize,
    /// Walls that this host cannot build, and why.
    pub missing: Vec<(String, String)>,
    /// How long it all took.
    pub seconds: f64,
}

/// The longest thing seen that is shown in the table, and in JSON.
const SHOWN: usize = 100;
const KEPT: usize = 2000;

/// Plain text of bounded length, in which everything hidden is visible.
pub fn to_inert_text(text: &str) -> String {
    let kept: String = text.chars().take(KEPT).collect();
    reveal_hidden_in_line(&kept)
}

fn truncate_text(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

impl VerifyReport {
    /// The table and a summary.
    pub fn write_table(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |of: fn(&ProbeRow) -> usize| self.probes.iter().map(of).max().unwrap_or(0);
        let (probe, expected) = (width(|row| row.probe.len()), width(|row| row.expected.len()));
        let mut group = String::new();
        for row in &self.probes {
            let title = match row.cell {
                CellOrigin::Cold => row.group.to_owned(),
                CellOrigin::Warm => format!("{}, in warm cells", row.group),
            };
            if title != group {
                writeln!(out, "\n{title}")?;
                group = title;
            }
            let held = if row.held { "held " } else { "BROKE" };
            // What was seen is interesting in full where something broke.
            let got = if row.held { truncate_text(&row.got) } else { row.got.clone() };
            writeln!(out, "  {held}  {:probe$}  {:expected$}  {got}", row.probe, row.expected)?;
        }
        writeln!(out)?;
        for (wall, why) in &self.missing {
            writeln!(out, "missing on this host: {wall} ({why})")?;
        }
        let all = self.probes.len();
        writeln!(out, "{} of {all} held, {} broke, in {:.1} s", self.held, self.broke, self.seconds)
    }

    /// One JSON object.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut *out, self)?;
        writeln!(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(got: &str, held: bool) -> String {
        let row = ProbeRow {
            probe: "p",
            group: "g",
            cell: CellOrigin::Cold,
            expected: "e",
            got: to_inert_text(got),
            held,
        };
        let broke = usize::from(!held);
        let report = VerifyReport {
            probes: vec![row],
            held: 1 - broke,
            broke,
            missing: vec![],
            seconds: 0.5,
        };
        let mut out = Vec::new();
        report.write_table(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_a_guest_printed_cannot_steer_a_terminal() {
        let shown = report("\u{1b}[2Jgone\r\u{202e}x\u{7}", false);
        assert!(!shown.contains(['\u{1b}', '\r', '\u{202e}', '\u{7}']), "{shown:?}");
        assert!(shown.contains("gone"));
    }

    #[test]
    fn a_long_word_of_a_guest_is_cut() {
        assert!(report(&"x".repeat(1 << 20), true).len() < 1000);
        assert!(report(&"x".repeat(1 << 20), false).len() < 3000);
    }

    #[test]
    fn the_summary_counts() {
        assert!(report("", false).ends_with("0 of 1 held, 1 broke, in 0.5 s\n"));
    }
}
