//! Runs in: test. Packets of a guest to the stack worker.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_egress::fuzzing::check_guest_packets(bytes));
