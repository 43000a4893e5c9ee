//! Prints the findings, as text or as JSON.

use std::io::{self, Write};

use super::{HostFindings, container, network, server, walls::WallState};

/// Prints one JSON object.
pub(super) fn print_json(findings: &HostFindings) {
    let mut text = serde_json::to_vec_pretty(findings).unwrap_or_default();
    text.push(b'\n');
    // A closed standard output is ignored.
    let _ = io::stdout().lock().write_all(&text);
}

/// Prints a table of walls, then languages, then whether a server would start.
pub(super) fn print_table(findings: &HostFindings) {
    let _ = io::stdout().lock().write_all(format_findings(findings).as_bytes());
}

fn format_findings(findings: &HostFindings) -> String {
    let who = if findings.root { "root" } else { "an ordinary user" };
    let mut lines = vec![format!("Linux {}, as {who}", findings.kernel), String::new()];
    for wall in &findings.walls {
        let mark = match wall.state {
            WallState::Present => "ok     ",
            WallState::Missing => "MISSING",
            WallState::Unknown => "?      ",
        };
        lines.push(format!("{mark}  {:<18} {}", wall.name, wall.stops));
        let indented = |word: &str, text: &String| format!("         {word:>4}: {text}");
        lines.extend(wall.why.as_ref().map(|why| indented("why", why)));
        lines.extend(wall.how.as_ref().map(|how| indented("how", how)));
    }
    lines.push(String::new());
    for language in &findings.languages {
        let name = language.language.name();
        lines.push(match (&language.path, &language.version) {
            (Some(path), Some(version)) => format!("ok       {name:<18} {version} at {path}"),
            _ => format!("none     {name:<18} {}", language.why.as_deref().unwrap_or("no answer")),
        });
    }
    lines.push(String::new());
    for parked in &findings.parked {
        let name = format!("parked {}", parked.language.name());
        let each = parked.pss_kib.map_or("its memory cannot be read here".to_owned(), |kib| {
            format!("{:.1} MiB each (PSS, with {} parked)", kib as f64 / 1024.0, parked.cells)
        });
        lines.push(format!("         {name:<18} {each}"));
    }
    lines.push(String::new());
    lines.extend(findings.network.iter().flat_map(network::network_lines));
    lines.push(String::new());
    lines.extend(server::server_lines(&findings.server));
    lines.push(String::new());
    lines.extend(findings.notes.iter().map(|note| format!("note: {note}")));
    lines.push(format_readiness(findings));
    lines.extend(findings.container.iter().flat_map(container::container_lines));
    lines.join("\n") + "\n"
}

fn format_readiness(findings: &HostFindings) -> String {
    let refuses = findings.serve.refuses.join(", ");
    match &findings.serve.flag {
        _ if findings.serve.refuses.is_empty() => "A server would start here.".to_owned(),
        Some(flag) => {
            format!("A server would refuse to start without {refuses}, unless given {flag}")
        }
        None => format!("A server would refuse to start without {refuses}; no flag changes that."),
    }
}
