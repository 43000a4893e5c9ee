//! Runs in: server (no capabilities).
//!
//! What a plan allows: `[plans.free]`, `[plans.pro]` and `[plans.enterprise]` of the file. Storage
//! budgets are in `[storage]`.

use cloche_engine::CreditAllowances;
use schemars::JsonSchema;
use serde::Deserialize;

use super::SettingsError;

/// The section of the file.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PlansFile {
    /// The plan free.
    free: PlanSection,
    /// The plan pro.
    pro: PlanSection,
    /// The plan enterprise.
    enterprise: PlanSection,
}

/// One plan.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct PlanSection {
    /// The credits that a team's executions may cost in a month.
    #[schemars(extend("x-default" = "no limit"))]
    monthly_credits: Option<f64>,
}

/// The largest allowance.
const MAX_CREDITS: f64 = 1e9;

impl PlansFile {
    pub(super) fn to_allowances(&self) -> Result<CreditAllowances, SettingsError> {
        Ok(CreditAllowances {
            free: to_micro_credits("free", &self.free)?,
            pro: to_micro_credits("pro", &self.pro)?,
            enterprise: to_micro_credits("enterprise", &self.enterprise)?,
        })
    }
}

fn to_micro_credits(
    plan: &'static str,
    section: &PlanSection,
) -> Result<Option<u64>, SettingsError> {
    let Some(credits) = section.monthly_credits else { return Ok(None) };
    if !(0.0..=MAX_CREDITS).contains(&credits) {
        return Err(SettingsError::Credits(plan, credits));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be positive and small enough"
    )]
    Ok(Some((credits * 1e6).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_read_by_plan_and_absent_by_default() {
        let file: PlansFile =
            toml::from_str("[free]\nmonthly_credits = 100\n[pro]\nmonthly_credits = 0.5\n")
                .unwrap();
        let allowances = file.to_allowances().unwrap();
        assert_eq!((allowances.free, allowances.pro), (Some(100_000_000), Some(500_000)));
        assert_eq!(allowances.enterprise, None);
        let wrong: PlansFile = toml::from_str("[pro]\nmonthly_credits = -1\n").unwrap();
        let error = wrong.to_allowances().unwrap_err();
        assert!(error.to_string().contains("plans.pro.monthly_credits"), "{error}");
    }
}
