//! Runs in: test. Many small files of a bucket, which are requested before they are opened.

use cloche_mounts::{ObjectPath, PutCondition};
use cloche_test_support::{moto::Moto, own_main::OwnTest, own_tests};

use crate::storage::{StorageHost, bucket, client, python};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    files_in_the_order_of_a_listing_are_read_and_counted_once,
    a_program_sees_its_own_changes_of_files_that_were_requested_ahead,
];

const FILES: u64 = 60;

/// A bucket with files `in/00` to `in/59`, each with its own number.
async fn fill(endpoint: &str) {
    let storage = client(endpoint, "");
    for number in 0..FILES {
        let path = ObjectPath::parse(&format!("in/{number:02}")).unwrap();
        let content = format!("file {number:02}").into_bytes();
        storage.put(&path, content.into(), &PutCondition::Always).await.unwrap();
    }
}

async fn files_in_the_order_of_a_listing_are_read_and_counted_once() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    fill(&endpoint).await;
    let code = "\
import os
names = sorted(os.listdir('/data/s/in'))
assert len(names) == 60
for name in names[:40]:
    assert open(f'/data/s/in/{name}').read() == f'file {name}'
for name in reversed(names):
    assert open(f'/data/s/in/{name}').read() == f'file {name}'
print('read')";
    let spec = python(code, vec![bucket("s", &endpoint, "")]);
    let outcome = host.run(spec).await;
    assert_eq!(outcome.stdout.to_text_lossy(), "read\n", "{}", outcome.stderr.to_text_lossy());
    // What was requested and not read is not counted.
    let most = (40 + FILES) * "file 00".len() as u64;
    let read = outcome.mounts[0].bytes_read;
    assert!((FILES * 7..=most).contains(&read), "{read} of {most}");
    assert_eq!(outcome.mounts[0].errors, 0);
    host.executor.stop().await;
}

async fn a_program_sees_its_own_changes_of_files_that_were_requested_ahead() {
    let Some(moto) = Moto::start() else { return };
    let Some(host) = StorageHost::start(None).await else { return };
    let endpoint = format!("http://{}", moto.address);
    fill(&endpoint).await;
    // Each change is of a file that the reads in order have had requested.
    let code = "\
import os
os.chdir('/data/s/in')
names, seen = sorted(os.listdir('.')), {}
for name in names:
    if name == '20':
        open('22', 'w').write('replaced')
        os.unlink('23')
        os.replace('25', '24')
        with open('26', 'a') as file: file.write(' appended')
    try: seen[name] = open(name).read()
    except FileNotFoundError: seen[name] = None
changed = {name: what for name, what in seen.items() if what != f'file {name}'}
print(changed)";
    let printed = host.output(python(code, vec![bucket("s", &endpoint, "")])).await;
    let expected = "{'22': 'replaced', '23': None, '24': 'file 25', '25': None, \
                    '26': 'file 26 appended'}\n";
    assert_eq!(printed, expected);
    host.executor.stop().await;
}
