//! What a tool says about the network of its sandbox, for models that use it.

use crate::{NetworkPolicy, NetworkRule};

/// The most rules that are listed.
const MOST_LISTED: usize = 20;

impl NetworkPolicy {
    /// One sentence for a model: what programs can reach.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Blocked => "There is no network.".to_owned(),
            Self::Unrestricted => {
                "Programs can reach the public internet, but no private network.".to_owned()
            }
            Self::Allowlist { rules } => {
                let listed = rules.iter().take(MOST_LISTED).map(NetworkRule::to_string);
                let listed = listed.collect::<Vec<_>>().join(", ");
                let more = match rules.len().saturating_sub(MOST_LISTED) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("Programs can reach only these hosts over the network: {listed}{more}.")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_described_with_a_bounded_list_of_its_rules() {
        assert_eq!(NetworkPolicy::Blocked.describe(), "There is no network.");
        let rules: Vec<String> = (0..22).map(|n| format!("h{n}.example")).collect();
        let said = NetworkPolicy::from_texts("allowlist", &rules).unwrap().describe();
        assert!(
            said.contains("h0.example, ") && said.ends_with("h19.example and 2 more."),
            "{said}"
        );
    }
}
