//! Runs in: test. The first bytes of a connection: TLS, HTTP or another protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_hello(bytes));
