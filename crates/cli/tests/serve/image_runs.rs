//! Programs on imported images, end to end: the real binary, images made with umoci, requests over
//! HTTP.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use reqwest::Client;
use serde_json::{Value, json};

use crate::{
    host::Host,
    registry::{Layouts, run},
    support::{Ended, binary, ended},
};

/// Copies the Python of this machine into a root: the program, its library, what both link to.
const COPY_PYTHON: &str = r#"
set -e
real=$(readlink -f /usr/bin/python3)
name=$(basename "$real")
cp "$real" "$0/usr/bin/python3"
mkdir -p "$0/usr/lib"
tar -C /usr/lib --exclude=test --exclude=idlelib --exclude=ensurepip --exclude=lib2to3 \
    --exclude=__pycache__ --exclude='config-*' -cf - "$name" | tar -C "$0/usr/lib" -xf -
ldd "$real" /usr/lib/"$name"/lib-dynload/*.so | grep -o '/[^ :]*\.so[^ :]*' | sort -u |
while read -r library; do
    mkdir -p "$0$(dirname "$library")"
    [ -e "$0$library" ] || cp "$library" "$0$library"
done
"#;

fn cloche(host: &Host, words: &[&str]) -> Ended {
    let mut command = Command::new(binary());
    command.args(words).arg("--data-dir").arg(host.data());
    ended(command, b"")
}

fn cloche_json(host: &Host, words: &[&str]) -> Value {
    let ended = cloche(host, &[words, &["--json"]].concat());
    assert_eq!(ended.code, 0, "{words:?} {ended:?} {}", host.said("log"));
    ended.json()
}

pub(crate) fn import(host: &Host, layouts: &Layouts, tag: &str) -> Value {
    let layout = layouts.path().display().to_string();
    cloche_json(host, &["image", "import", &layout, "--ref", tag, "--name", &format!("{tag}:1")])
}

/// A sandbox with this image, and a key of it.
pub(crate) fn sandbox_key(host: &Host, name: &str, image: &str) -> String {
    cloche_json(host, &["sandbox", "create", name, "--image", image]);
    key_of(host, name)
}

fn key_of(host: &Host, sandbox: &str) -> String {
    let made = cloche_json(host, &["key", "create", sandbox, "--sandbox", sandbox]);
    made["key"].as_str().unwrap().to_owned()
}

async fn run_as(host: &Host, key: &str, body: Value) -> (u16, Value) {
    let request = Client::new().post(format!("{}/v1/sandbox/execute", host.url));
    let answer = request.bearer_auth(key).json(&body).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

pub(crate) async fn output(host: &Host, key: &str, language: &str, code: &str) -> String {
    let (status, body) = run_as(host, key, json!({"language": language, "code": code})).await;
    assert_eq!((status, &body["success"]), (200, &json!(true)), "{body} {}", host.said("log"));
    body["stdout"].as_str().unwrap().to_owned()
}

pub(crate) fn add_python(root: &Path) {
    run("sh", &["-c", COPY_PYTHON, root.to_str().unwrap()]);
}

#[tokio::test]
async fn programs_run_on_the_image_of_their_sandbox_cold_and_warm() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    layouts.add_layer("one", "python", |root| {
        add_python(root);
        fs::write(root.join("usr/bin/node"), "#!/usr/bin/missing\n").unwrap();
        run("chmod", &["755", root.join("usr/bin/node").to_str().unwrap()]);
    });
    let image = import(&host, &layouts, "python");
    let python = image["interpreters"].as_array().unwrap().iter();
    let python = python.clone().find(|it| it["language"] == "python").unwrap();
    assert_eq!(python["implementation"], "cpython", "{image}");
    assert_eq!(python["start"], "forked", "{image}");
    assert!(python["libc"].as_str().unwrap().contains("libc"), "{image}");
    let shown = cloche(&host, &["image", "inspect", "python:1"]);
    assert!(shown.stdout.contains("forked"), "{shown:?}");

    // A Python without its library is found, and the import says why it does not start.
    layouts.add_layer("python", "broken", |root| {
        run("sh", &["-c", "rm -r \"$0\"/usr/lib/python3*", root.to_str().unwrap()]);
    });
    let broken = import(&host, &layouts, "broken");
    let note = broken["notes"][0].as_str().unwrap();
    assert!(note.starts_with("its python does not start: it exited with 1: "), "{broken}");

    let key = sandbox_key(&host, "py", "python:1");
    let code = "import os; print(os.environ['COLOR'], os.path.exists('/one'), os.listdir('/etc'))";
    let first = output(&host, &key, "python", code).await;
    assert!(first.starts_with("blue True ") && !first.contains("debian_version"), "{first}");
    for _ in 0..6 {
        assert_eq!(output(&host, &key, "python", code).await, first);
    }
    let body = json!({"code": "open('kept', 'w').write('x')", "thread_id": "t-1"});
    assert_eq!(run_as(&host, &key, body).await.0, 200);
    let body =
        json!({"code": "cat kept; echo; ls -d /one", "language": "bash", "thread_id": "t-1"});
    assert_eq!(run_as(&host, &key, body).await.1["stdout"], "x\n/one\n");

    // What the image lacks is refused with what it has; the host's own key is not affected.
    let body = json!({"code": "puts 1", "language": "ruby"});
    let (status, refused) = run_as(&host, &key, body).await;
    let message = refused["message"].as_str().unwrap();
    assert_eq!(status, 400, "{refused}");
    assert!(message.contains("python:1@sha256:") && message.contains("has no ruby"), "{message}");
    assert!(message.contains("python, bash, sh"), "{message}");
    let (status, own) = host.run(json!({"code": "import os; print(os.path.exists('/one'))"})).await;
    assert_eq!((status, &own["stdout"]), (200, &json!("False\n")));
    let restarted = host.restart_with(&[]).await;
    assert_eq!(output(&restarted, &key, "python", code).await, first);
}

#[tokio::test]
async fn sandboxes_have_images_of_their_own_and_move_between_them() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    layouts.add_layer("base", "hostile", |root| {
        fs::create_dir_all(root.join("opt/trap/baponi")).unwrap();
        for name in ["proc", "dev", "tmp", "home", "sys", "data", "etc"] {
            let _ = fs::remove_dir_all(root.join(name));
            symlink("/opt/trap", root.join(name)).unwrap();
        }
        symlink("../../../../../../opt/trap", root.join("var")).unwrap();
    });
    for tag in ["one", "two", "hostile"] {
        import(&host, &layouts, tag);
    }
    let (one, two) = (sandbox_key(&host, "a", "one:1"), sandbox_key(&host, "b", "two:1"));
    let hostile = sandbox_key(&host, "c", "hostile:1");
    let code = "ls -d /one /two 2> /dev/null; true";
    for _ in 0..3 {
        assert_eq!(output(&host, &one, "sh", code).await, "/one\n");
        assert_eq!(output(&host, &two, "bash", code).await, "/two\n");
    }
    let code = "cat /proc/1/comm; touch /tmp/t ~/h; echo $(ls /opt/trap /opt/trap/baponi)";
    let seen = output(&host, &hostile, "sh", code).await;
    assert_eq!(seen, "cloche\n/opt/trap: baponi /opt/trap/baponi:\n");

    // The next execution of the same key is on the new image, and the old one can be removed.
    let refused = cloche(&host, &["image", "rm", "one:1"]);
    assert!(refused.code != 0 && refused.stderr.contains("in use by default/a"), "{refused:?}");
    cloche_json(&host, &["sandbox", "set", "default/a", "--image", "two:1"]);
    let code = "ls -d /one /two 2> /dev/null; true";
    assert_eq!(output(&host, &one, "sh", code).await, "/two\n");
    assert_eq!(cloche(&host, &["image", "rm", "one:1"]).code, 0);
    assert_eq!(output(&host, &one, "sh", code).await, "/two\n");
}

#[tokio::test]
async fn new_sandboxes_get_the_default_image_and_old_ones_keep_theirs() {
    let Some(host) = Host::start().await else { return };
    let Some(layouts) = Layouts::make(1000) else { return };
    let said = host.said("stdout");
    assert!(said.contains("new sandboxes get the image host"), "{said}");
    assert!(said.contains("cloche image import target/images/default --name cloche/default"));
    let layout = layouts.path().display().to_string();
    let words = ["image", "import", &layout, "--ref", "one", "--name", "cloche/default:v1"];
    let digest = cloche_json(&host, &words)["digest"].as_str().unwrap().to_owned();
    let image = format!("cloche/default:v1@{digest}");
    assert_eq!(cloche_json(&host, &["sandbox", "create", "new"])["image"], image);
    let words = ["sandbox", "create", "plain", "--image", "host"];
    assert_eq!(cloche_json(&host, &words)["image"], "host");
    let old = cloche_json(&host, &["sandbox", "show", "default/default"]);
    assert_eq!(old["image"], "host");
    let key = key_of(&host, "new");
    assert_eq!(output(&host, &key, "sh", "ls -d /one").await, "/one\n");
    let restarted = host.restart_with(&[]).await;
    let said = restarted.said("stdout");
    assert!(said.contains(&format!("new sandboxes get the image {image}")), "{said}");
}
