//! Runs in: test. What a guest sends on a connection of plain HTTP under an allowlist.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_http(bytes));
