//! Integers as JSON defines them: `60` and `60.0` are the same integer, `60.5` is not an integer.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Number;

/// Deserializes an integer or null.
pub(crate) fn whole<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    let number = Option::<Number>::deserialize(deserializer)?;
    number
        .map(|number| to_integer(&number).ok_or_else(|| not_whole_error::<D>(&number)))
        .transpose()
}

/// Deserializes an integer that is required.
pub(super) fn whole_number<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    let number = Number::deserialize(deserializer)?;
    to_integer(&number).ok_or_else(|| not_whole_error::<D>(&number))
}

/// Deserializes an integer where null and absence differ. The field also needs `default`.
#[expect(clippy::option_option, reason = "absent, null and a value have three different meanings")]
pub(super) fn whole_or_null<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    whole(deserializer).map(Some)
}

/// The largest number of credits.
const MAX_CREDITS: f64 = 1e9;

/// Deserializes a number of credits, or null, in millionths.
pub(super) fn credits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = Option::<f64>::deserialize(deserializer)?;
    let to_micro = |credits: f64| {
        let in_range = (0.0..=MAX_CREDITS).contains(&credits);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be positive and small enough"
        )]
        in_range.then_some((credits * 1e6).round() as u64).ok_or_else(|| {
            D::Error::custom(format!("{credits} is not a number of credits from 0 to 1000000000"))
        })
    };
    number.map(to_micro).transpose()
}

/// Deserializes a number of credits where null and absence differ. The field also needs `default`.
#[expect(clippy::option_option, reason = "absent, null and a value have three different meanings")]
pub(super) fn credits_or_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<u64>>, D::Error> {
    credits(deserializer).map(Some)
}

fn not_whole_error<'de, D: Deserializer<'de>>(number: &Number) -> D::Error {
    D::Error::custom(format!("{number} is not a whole number in its range"))
}

/// Converts the number to an integer of this type, if it is one.
pub(super) fn to_integer<T: TryFrom<i64>>(number: &Number) -> Option<T> {
    let whole = number.as_i64().or_else(|| {
        let float = number.as_f64().filter(|float| float.fract() == 0.0)?;
        // Beyond this, adjacent integers have the same floating-point value.
        let exact = float.abs() <= 9_007_199_254_740_992.0;
        #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and small enough")]
        exact.then_some(float as i64)
    })?;
    T::try_from(whole).ok()
}
