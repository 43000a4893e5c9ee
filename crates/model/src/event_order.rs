//! A score as text: `FIRST:STDOUT:STDERR:o12,e5,k`. Compact, and readable in a database shell.

use std::{fmt, str::FromStr};

use crate::{EventMark, EventOrder, Invalid, StreamName};

impl fmt::Display for EventOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:", self.first_seq, self.stdout_skipped, self.stderr_skipped)?;
        for (position, beat) in self.marks.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match beat {
                EventMark::Output(StreamName::Stdout, length) => write!(f, "o{length}")?,
                EventMark::Output(StreamName::Stderr, length) => write!(f, "e{length}")?,
                EventMark::Keepalive => f.write_str("k")?,
            }
        }
        Ok(())
    }
}

impl FromStr for EventOrder {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        parse_order(text)
            .ok_or_else(|| Invalid::new("the order of the output events cannot be read"))
    }
}

fn parse_order(text: &str) -> Option<EventOrder> {
    let mut parts = text.splitn(4, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let (first_seq, stdout_skipped, stderr_skipped) = (number()?, number()?, number()?);
    let beats = parts.next()?;
    let beats =
        beats.split(',').filter(|beat| !beat.is_empty()).map(parse_mark).collect::<Option<_>>()?;
    Some(EventOrder { first_seq, stdout_skipped, stderr_skipped, marks: beats })
}

fn parse_mark(text: &str) -> Option<EventMark> {
    match text.split_at_checked(1)? {
        ("o", length) => Some(EventMark::Output(StreamName::Stdout, length.parse().ok()?)),
        ("e", length) => Some(EventMark::Output(StreamName::Stderr, length.parse().ok()?)),
        ("k", "") => Some(EventMark::Keepalive),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::{
        collection::vec,
        prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest},
    };

    use super::*;

    fn any_beat() -> impl Strategy<Value = EventMark> {
        prop_oneof![
            any::<u32>().prop_map(|length| EventMark::Output(StreamName::Stdout, length)),
            any::<u32>().prop_map(|length| EventMark::Output(StreamName::Stderr, length)),
            Just(EventMark::Keepalive),
        ]
    }

    proptest! {
        #[test]
        fn a_score_survives_being_written_and_read(
            first_seq in any::<u64>(),
            stdout_skipped in any::<u64>(),
            beats in vec(any_beat(), 0..50),
        ) {
            let score = EventOrder { first_seq, stdout_skipped, stderr_skipped: 3, marks: beats };
            prop_assert_eq!(score.to_string().parse(), Ok(score));
        }

        #[test]
        fn no_text_makes_reading_panic(text in ".*") {
            let _ = text.parse::<EventOrder>();
        }
    }
}
