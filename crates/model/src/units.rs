//! Sizes and shares as types, so that names of integers need no units.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// A number of bytes. Parses `64M`, `1GiB`, `512k`, `1000`; suffixes are powers of 1024.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// A share of processor time in thousandths of a core. Parses `0.5`, `2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CpuShare {
    milli: u32,
}

/// A duration for messages: `30s`, or `0.005s` if it is not whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisplaySeconds(pub Duration);

impl fmt::Display for DisplaySeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.subsec_millis() {
            0 => write!(f, "{}s", self.0.as_secs()),
            millis => {
                let fraction = format!("{millis:03}");
                write!(f, "{}.{}s", self.0.as_secs(), fraction.trim_end_matches('0'))
            }
        }
    }
}

/// A size or share that could not be parsed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("cannot read {text:?} as {what}")]
pub struct InvalidUnit {
    text: String,
    what: &'static str,
}

impl ByteSize {
    /// `n` times 1024 bytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }

    /// `n` times 1024² bytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// `n` times 1024³ bytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
            .into_iter()
            .find(|(shift, _)| self.0 >= 1 << shift && self.0.is_multiple_of(1 << shift));
        match whole {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl FromStr for ByteSize {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = || InvalidUnit { text: text.to_owned(), what: "a size such as 64M or 1GiB" };
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(invalid()),
        };
        let number: u64 = number.parse().map_err(|_| invalid())?;
        number.checked_mul(1 << shift).map(Self).ok_or_else(invalid)
    }
}

impl CpuShare {
    /// This many thousandths of a core; at least ten, the kernel's smallest quota.
    #[must_use]
    pub const fn from_millicores(milli: u32) -> Self {
        Self { milli: if milli < 10 { 10 } else { milli } }
    }

    /// This many whole cores.
    #[must_use]
    pub const fn from_cores(cores: u32) -> Self {
        Self { milli: cores.saturating_mul(1000) }
    }

    /// The share in thousandths of a core.
    #[must_use]
    pub const fn millicores(self) -> u32 {
        self.milli
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.milli) / 1000.0)
    }
}

impl FromStr for CpuShare {
    type Err = InvalidUnit;

    fn from_str(text: &str) -> Result<Self, InvalidUnit> {
        let invalid = || InvalidUnit { text: text.to_owned(), what: "cores such as 0.5 or 2" };
        let cores: f64 = text.parse().map_err(|_| invalid())?;
        if !(0.01..=4096.0).contains(&cores) {
            return Err(invalid());
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to lie between 10 and 4,096,000"
        )]
        let milli = (cores * 1000.0).round() as u32;
        Ok(Self::from_millicores(milli))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn sizes_parse_with_common_suffixes() {
        for (text, bytes) in [("64M", 64 << 20), ("1GiB", 1 << 30), ("512k", 512 << 10), ("7", 7)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "M", "-1", "1.5G", "99999999999999T", "12 parsecs"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn shares_out_of_range_are_refused() {
        assert_eq!("0.5".parse::<CpuShare>().unwrap().millicores(), 500);
        for text in ["0", "0.001", "-1", "NaN", "inf", "1e9", "two"] {
            assert!(text.parse::<CpuShare>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_size_round_trips_through_text(bytes in 0_u64..=u64::MAX) {
            let shown = ByteSize(bytes).to_string();
            prop_assert_eq!(shown.replace(" bytes", "").parse(), Ok(ByteSize(bytes)));
        }
    }
}
