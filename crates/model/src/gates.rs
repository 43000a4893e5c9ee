//! The gates in front of agent tools: who may use one, who has to be asked, and what was decided.
//!
//! Plain rows. Which gate is open is for the engine to say.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    ApprovalId, DecisionId, HomeChanges, HomeState, Invalid, KeyId, Moment, TeamId, TraceId,
};

/// Gives an enum its names: on the wire, in the store, and back.
macro_rules! named {
    ($type:ident, $field:literal: $($variant:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// Every one.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name on the wire.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $type {
            type Err = Invalid;

            fn from_str(name: &str) -> Result<Self, Invalid> {
                Self::ALL.iter().copied().find(|each| each.name() == name).ok_or_else(|| {
                    let names = [$($name),+].join(", ");
                    Invalid::new(format!("{} must be one of: {names}", $field))
                })
            }
        }
    };
}

/// A tool that agents are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AgentTool {
    /// Runs code. Risk tier T4: without a policy, a person is asked.
    ExecuteCode,
    /// Writes a file into a home that code runs in: the same tier, and the same policy.
    WriteFile,
}

named!(AgentTool, "tool": ExecuteCode = "execute_code", WriteFile = "write_file");

impl AgentTool {
    /// The setting that holds its policy.
    #[must_use]
    pub const fn policy_name(self) -> &'static str {
        match self {
            Self::ExecuteCode | Self::WriteFile => Self::ExecuteCode.name(),
        }
    }
}

/// What a team says about a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolPolicy {
    /// Every call may run.
    Allow,
    /// A person is asked about every call.
    Ask,
    /// No call may run.
    Deny,
}

named!(ToolPolicy, "execute_code": Allow = "allow", Ask = "ask", Deny = "deny");

/// What a team, or the whole fleet, has set of the gates. What is absent is looked up further out:
/// the team's, then the fleet's, then what is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateSettings {
    /// Whether agents may run code at all.
    pub agent_sandbox: Option<bool>,
    /// What happens to a call of `execute_code`.
    pub execute_code: Option<ToolPolicy>,
    /// Whether the person at the client that asks may answer.
    pub elicitation: Option<bool>,
}

impl GateSettings {
    /// These, and where they say nothing, those of `outer`.
    #[must_use]
    pub fn with_fallback(self, outer: Self) -> Self {
        Self {
            agent_sandbox: self.agent_sandbox.or(outer.agent_sandbox),
            execute_code: self.execute_code.or(outer.execute_code),
            elicitation: self.elicitation.or(outer.elicitation),
        }
    }

    /// Whether agents may run code; not unless someone said so.
    #[must_use]
    pub fn allows_agents(self) -> bool {
        self.agent_sandbox.unwrap_or(false)
    }

    /// What happens to a call of this tool; without a policy, its risk tier decides.
    #[must_use]
    pub fn policy_for(self, tool: AgentTool) -> ToolPolicy {
        match tool {
            AgentTool::ExecuteCode | AgentTool::WriteFile => {
                self.execute_code.unwrap_or(ToolPolicy::Ask)
            }
        }
    }

    /// Whether the person at the client may answer.
    #[must_use]
    pub fn allows_elicitation(self) -> bool {
        self.elicitation.unwrap_or(true)
    }
}

/// Where an approval stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApprovalState {
    /// Nobody has answered yet.
    Pending,
    /// Someone said yes; the call may be made once.
    Approved,
    /// Someone said no.
    Denied,
    /// Nobody answered in time, or the call was not made in time.
    Expired,
    /// The call was made.
    Used,
}

named!(
    ApprovalState, "state":
    Pending = "pending", Approved = "approved", Denied = "denied", Expired = "expired", Used = "used",
);

/// A call that waits, or waited, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Approval {
    /// Its id.
    pub id: ApprovalId,
    /// Whose agent asks.
    pub team: TeamId,
    /// The key it asks with. Only this key can use the approval, and it cannot give it.
    pub key: KeyId,
    /// What it wants to use.
    pub tool: AgentTool,
    /// SHA-256 of the arguments in their canonical form.
    pub digest: String,
    /// The arguments for a person to read, cut if they are long; gone once nothing waits for them.
    pub arguments: Option<String>,
    /// How long the arguments are, in bytes.
    pub arguments_bytes: u64,
    /// The home that the call runs in. The approval is good for this state of it only.
    pub home: Option<HomeState>,
    /// What differs in it since the last approval; gone once nothing waits for it.
    pub changes: Option<HomeChanges>,
    /// Where it stands.
    pub state: ApprovalState,
    /// When it was asked for.
    pub created_at: Moment,
    /// Until when it can be answered, and then until when it can be used.
    pub expires_at: Moment,
    /// When it was answered.
    pub decided_at: Option<Moment>,
    /// Who answered.
    pub decided_by: Option<String>,
    /// Why, if they said; of one that has expired, why it no longer counts.
    pub reason: Option<String>,
}

/// What kind of decision it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DecisionKind {
    /// A call may run, as the policy says so.
    Allowed,
    /// A call was turned away by a gate or by the policy.
    Refused,
    /// A call waits for a person.
    Asked,
    /// A person said yes.
    Approved,
    /// A person said no.
    Denied,
    /// Nobody said anything in time, or the approval was not used in time.
    Expired,
    /// A call may run, as its approval was used for it.
    Used,
    /// The settings of a team or of the fleet were changed.
    Changed,
}

named!(
    DecisionKind, "kind":
    Allowed = "allowed", Refused = "refused", Asked = "asked", Approved = "approved",
    Denied = "denied", Expired = "expired", Used = "used", Changed = "changed",
);

/// One decision, with who and when. They are only ever added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Its id.
    pub id: DecisionId,
    /// What was decided.
    pub kind: DecisionKind,
    /// Who decided: a person, a key, a policy, or the time.
    pub by: String,
    /// When.
    pub at: Moment,
    /// The team it is about; none for the fleet.
    pub team: Option<TeamId>,
    /// The key that asked.
    pub key: Option<KeyId>,
    /// The tool.
    pub tool: Option<AgentTool>,
    /// SHA-256 of the arguments.
    pub digest: Option<String>,
    /// The approval it belongs to.
    pub approval: Option<ApprovalId>,
    /// The execution that it let run.
    pub execution: Option<TraceId>,
    /// In words: why, or what was set.
    pub note: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_from_anyone_nothing_is_open() {
        let settings = GateSettings::default();
        assert!(!settings.allows_agents());
        assert_eq!(settings.policy_for(AgentTool::ExecuteCode), ToolPolicy::Ask);
    }

    #[test]
    fn a_team_s_own_word_comes_before_the_fleet_s() {
        let fleet = GateSettings {
            agent_sandbox: Some(true),
            execute_code: Some(ToolPolicy::Allow),
            elicitation: None,
        };
        let own = GateSettings { agent_sandbox: Some(false), ..GateSettings::default() };
        assert!(!own.with_fallback(fleet).allows_agents());
        assert_eq!(own.with_fallback(fleet).policy_for(AgentTool::ExecuteCode), ToolPolicy::Allow);
    }

    #[test]
    fn names_are_read_back() {
        for kind in DecisionKind::ALL {
            assert_eq!(kind.name().parse::<DecisionKind>(), Ok(*kind));
        }
        let error = "maybe".parse::<ToolPolicy>().unwrap_err();
        assert_eq!(error.to_string(), "execute_code must be one of: allow, ask, deny");
    }
}
