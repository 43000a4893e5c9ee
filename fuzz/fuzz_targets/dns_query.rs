//! Runs in: test. A DNS query of a guest.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_query(bytes));
