//! Runs in: test. The formats of data analysis on storage, read and written by their own libraries.

use std::{fs, path::PathBuf, time::Duration};

use cloche_model::{ByteSize, MountSource, MountSpec};
use cloche_test_support::{moto::Moto, own_main::OwnTest, own_tests, skip};

use crate::storage::{StorageHost, bucket, client, mount, python, volume};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    formats_of_data_analysis_work_on_a_volume,
    formats_of_data_analysis_work_on_a_bucket,
];

const FORMATS: &str = include_str!("storage/formats.py");

/// The packages that the test needs, for the Python of this host.
fn packages() -> Option<PathBuf> {
    let library = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.venv-formats/lib");
    let versions = fs::read_dir(library).into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("site-packages"));
    let found = found.into_iter().find(|packages| packages.join("h5py").exists());
    if found.is_none() {
        skip("there is no .venv-formats: run scripts/setup-tests");
    }
    found
}

async fn run_formats(host: &StorageHost, packages: PathBuf, storage: MountSpec) {
    let packages =
        MountSpec { read_only: true, ..mount("packages", MountSource::Directory(packages)) };
    let mut spec = python(FORMATS, vec![packages, storage]);
    spec.env.insert("ROOT".to_owned(), "/data/f".to_owned());
    spec.limits.timeout = Duration::from_secs(180);
    spec.limits.memory = ByteSize::gib(2);
    let printed = host.output(spec).await;
    let is_good =
        printed.lines().count() == 7 && printed.lines().all(|line| line.starts_with("ok "));
    assert!(is_good, "{printed}");
}

async fn formats_of_data_analysis_work_on_a_volume() {
    let Some(packages) = packages() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let id = host.new_volume("vol_formats");
    run_formats(&host, packages, volume("f", &id, 1 << 30)).await;
    host.executor.stop().await;
}

async fn formats_of_data_analysis_work_on_a_bucket() {
    let Some(packages) = packages() else { return };
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    run_formats(&host, packages, bucket("f", &endpoint, "team/a")).await;
    // The objects are what the library wrote, byte for byte.
    let storage = client(&endpoint, "team/a");
    let path = cloche_mounts::ObjectPath::parse("f.npy").unwrap();
    assert_eq!(storage.head(&path).await.unwrap().size, 128 + 8 * 500_000);
    host.executor.stop().await;
}
