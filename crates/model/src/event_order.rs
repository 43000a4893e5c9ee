//! [`EventOrder`] as text: `FIRST:STDOUT:STDERR:o12,e5,k,x900`. Compact, and readable in a
//! database shell.

use std::{fmt, str::FromStr};

use crate::{EventMark, EventOrder, Invalid, StreamName};

impl fmt::Display for EventOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:", self.first_seq, self.stdout_skipped, self.stderr_skipped)?;
        for (position, mark) in self.marks.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match mark {
                EventMark::Output(StreamName::Stdout, length) => write!(f, "o{length}")?,
                EventMark::Output(StreamName::Stderr, length) => write!(f, "e{length}")?,
                EventMark::LeftOut(events) => write!(f, "x{events}")?,
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
    let marks = parts.next()?;
    let marks =
        marks.split(',').filter(|mark| !mark.is_empty()).map(parse_mark).collect::<Option<_>>()?;
    Some(EventOrder { first_seq, stdout_skipped, stderr_skipped, marks })
}

fn parse_mark(text: &str) -> Option<EventMark> {
    match text.split_at_checked(1)? {
        ("o", length) => Some(EventMark::Output(StreamName::Stdout, length.parse().ok()?)),
        ("e", length) => Some(EventMark::Output(StreamName::Stderr, length.parse().ok()?)),
        ("x", events) => Some(EventMark::LeftOut(events.parse().ok()?)),
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

    fn any_mark() -> impl Strategy<Value = EventMark> {
        prop_oneof![
            any::<u32>().prop_map(|length| EventMark::Output(StreamName::Stdout, length)),
            any::<u32>().prop_map(|length| EventMark::Output(StreamName::Stderr, length)),
            any::<u64>().prop_map(EventMark::LeftOut),
            Just(EventMark::Keepalive),
        ]
    }

    proptest! {
        #[test]
        fn event_order_round_trips_through_text(
            first_seq in any::<u64>(),
            stdout_skipped in any::<u64>(),
            marks in vec(any_mark(), 0..50),
        ) {
            let order = EventOrder { first_seq, stdout_skipped, stderr_skipped: 3, marks };
            prop_assert_eq!(order.to_string().parse(), Ok(order));
        }

        #[test]
        fn parsing_never_panics(text in ".*") {
            let _ = text.parse::<EventOrder>();
        }
    }
}
