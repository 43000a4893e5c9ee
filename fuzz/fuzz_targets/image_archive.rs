//! Runs in: test. Any bytes as an archive of an image, as its documents, and as a program.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cloche_images::fuzzing::check_image_archive(bytes));
