//! Runs in: test. Any bytes as a packet between server and spawner.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_executor::fuzzing::check_packet(bytes));
