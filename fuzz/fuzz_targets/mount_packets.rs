//! Runs in: test. Any bytes as a packet between the server and a mount server.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_mounts::fuzzing::check_mount_packet(bytes));
