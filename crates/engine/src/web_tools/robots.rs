//! Runs in: server (no capabilities).
//!
//! robots.txt as RFC 9309 has it: groups of agents, rules for paths, the longest rule decides. The
//! file is written by others, so only its first rules count.

/// The most rules of a file that are kept.
const MAX_RULES: usize = 2_000;
/// The most wildcards of one rule. A rule with more is left out.
const MAX_WILDCARDS: usize = 8;

/// The rules of one host for one agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RobotRules {
    /// Each rule: its path pattern, and whether it allows.
    rules: Vec<(String, bool)>,
}

impl RobotRules {
    /// Rules that allow nothing, for a host whose file cannot be read.
    pub(super) fn deny_all() -> Self {
        Self { rules: vec![("/".to_owned(), false)] }
    }

    /// The rules of the groups for this agent; without such a group, of the groups for all agents.
    pub(super) fn parse(text: &str, agent: &str) -> Self {
        let agent = agent.split(['/', ' ']).next().unwrap_or_default().to_ascii_lowercase();
        let (mut own, mut general) = (Vec::new(), Vec::new());
        let (mut names_own, mut in_own, mut in_general, mut in_rules) = (false, false, false, true);
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let Some((field, value)) = line.split_once(':') else { continue };
            let (field, value) = (field.trim().to_ascii_lowercase(), value.trim());
            if field == "user-agent" {
                if in_rules {
                    (in_own, in_general, in_rules) = (false, false, false);
                }
                let value = value.to_ascii_lowercase();
                in_general |= value == "*";
                in_own |= value == agent;
                names_own |= value == agent;
                continue;
            }
            let allows = match field.as_str() {
                "allow" => true,
                "disallow" => false,
                _ => continue,
            };
            in_rules = true;
            let is_usable = !value.is_empty() && value.matches('*').count() <= MAX_WILDCARDS;
            for (rules, applies) in [(&mut own, in_own), (&mut general, in_general)] {
                if applies && is_usable && rules.len() < MAX_RULES {
                    rules.push((value.to_owned(), allows));
                }
            }
        }
        Self { rules: if names_own { own } else { general } }
    }

    /// Whether a path with its query may be read. Of rules of the same length, the allowing one
    /// decides.
    pub(super) fn allow(&self, path: &str) -> bool {
        let matching = self.rules.iter().filter(|(pattern, _)| matches_pattern(pattern, path));
        matching.max_by_key(|(pattern, allows)| (pattern.len(), *allows)).is_none_or(|rule| rule.1)
    }
}

/// Whether a path begins with a pattern, in which `*` is any text and a last `$` is the end.
fn matches_pattern(pattern: &str, path: &str) -> bool {
    let (pattern, to_the_end) = match pattern.strip_suffix('$') {
        Some(pattern) => (pattern, true),
        None => (pattern, false),
    };
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = path.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    for (at, part) in parts.iter().enumerate() {
        if to_the_end && at + 1 == parts.len() {
            return rest.ends_with(part);
        }
        let Some(found) = rest.find(part) else { return false };
        rest = &rest[found + part.len()..];
    }
    !to_the_end || rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
User-agent: other
Disallow: /

User-agent: *
User-agent: third
Allow: /private/open
Disallow: /private # a comment
Disallow: /*.pdf$
Disallow: /a*b*c
disallow:
Sitemap: https://x.example/s.xml
";

    #[test]
    fn the_longest_rule_decides() {
        let rules = RobotRules::parse(TEXT, "Cloche/1.0");
        for path in ["/", "/private/open/x", "/x.pdf?y", "/ab", "/privat"] {
            assert!(rules.allow(path), "{path}");
        }
        for path in ["/private", "/private/x", "/x/y.pdf", "/aXbYc/z"] {
            assert!(!rules.allow(path), "{path}");
        }
    }

    #[test]
    fn a_group_of_its_own_replaces_the_general_one() {
        let text = format!("{TEXT}\nUser-agent: cloche\nDisallow: /only\n");
        let rules = RobotRules::parse(&text, "Cloche/1.0");
        assert!(rules.allow("/private") && !rules.allow("/only/this"));
        assert!(!RobotRules::parse(TEXT, "Other/2").allow("/anything"));
        assert!(RobotRules::parse("", "Cloche").allow("/"));
        assert!(!RobotRules::deny_all().allow("/"));
    }

    #[test]
    fn many_rules_and_wildcards_are_bounded() {
        let many = format!("User-agent: *\n{}", "Disallow: /x\n".repeat(MAX_RULES * 2));
        assert_eq!(RobotRules::parse(&many, "Cloche").rules.len(), MAX_RULES);
        let wild = format!("User-agent: *\nDisallow: /{}\n", "*a".repeat(1000));
        assert!(RobotRules::parse(&wild, "Cloche").allow(&"/a".repeat(1000)));
    }
}
