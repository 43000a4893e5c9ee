//! Runs in: test. Any bytes as the body of a reply, cut into chunks.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_interception::fuzzing::check_redaction(bytes));
