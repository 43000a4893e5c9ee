//! Runs in: test. Any bytes as a list answer of an object store and as a path of an object.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    cloche_mounts::fuzzing::check_listing(bytes);
    cloche_mounts::fuzzing::check_object_path(bytes);
});
