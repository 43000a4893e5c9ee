//! Runs in: test. Cells whose root is an image: a stack of layers instead of the host's `/usr`.

use std::time::Duration;

use cloche_executor::{HOME, ImageMountError, PoolSettings, RunError, RunIo};
use cloche_model::{ByteSize, ImageRoot, Language, LayerDigest, RunSpec};
use cloche_test_support::{eventually, own_main::OwnTest, own_tests, processes};
use cloche_verify::{HostDecoys, PROBES, ProbeFinding, ProbeRunner};

use crate::{
    homes_host::Thread,
    image_host::{
        BASH, ImageHost, LayerTree, PYTHON, PYTHON_PREFIX, SH, image_of, python_image, shape_of,
    },
};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_program_runs_with_the_interpreters_and_the_files_of_its_image,
    nothing_of_the_image_can_be_written,
    whiteouts_and_opaque_directories_hide_lower_layers,
    links_in_the_place_of_mount_points_lead_no_mount_elsewhere,
    two_images_and_the_host_serve_in_turn,
    a_thread_keeps_its_home_on_an_image,
    layers_of_a_running_cell_stay_and_those_of_an_idle_image_are_released,
    an_image_is_mounted_again_after_the_spawner_died,
    an_image_that_cannot_be_mounted_is_an_error_and_nothing_runs,
    the_escape_probes_hold_on_an_image_in_cold_and_in_forked_cells,
];

/// An image with commands and nothing else, and what more its top layer has.
async fn shell_image(host: &ImageHost, top: &LayerTree) -> ImageRoot {
    let base = LayerTree::with_merged_usr();
    base.commands();
    host.image(&[&base, top], &[BASH, SH]).await
}

async fn a_program_runs_with_the_interpreters_and_the_files_of_its_image() {
    let Some(host) = ImageHost::start(None).await else { return };
    let Some(image) = python_image(&host).await else { return };
    let code = "import os, sys, pwd\nprint(sys.prefix, sys.executable, os.getcwd())\n\
        print(open('/opt/says').read(), os.path.exists('/usr/bin/python3'))\n\
        print(pwd.getpwuid(os.getuid()).pw_name, os.stat('/opt/says').st_uid)\n\
        print(open('/etc/hostname').read(), end='')";
    let expected = format!(
        "{PYTHON_PREFIX} {PYTHON_PREFIX}/bin/python3 {HOME}\nthe image False\nbaponi 0\ncloche\n"
    );
    assert_eq!(host.output(&image, Language::Python, code).await, expected);
    let seen = host.output(&image, Language::Bash, "ls / /home; cat /opt/says; echo $0").await;
    assert!(seen.ends_with("the image/home/baponi/main.sh\n"), "{seen}");
    let names: Vec<&str> = seen.split_whitespace().collect();
    for hidden in ["boot", "root", "layers", "stage", "image"] {
        assert!(!names.contains(&hidden), "{hidden} is visible: {seen}");
    }
    host.host.executor.stop().await;
}

async fn nothing_of_the_image_can_be_written() {
    let Some(host) = ImageHost::start(None).await else { return };
    let top = LayerTree::new();
    for (path, mode) in [("opt/open/file", 0o666), ("home/other/file", 0o666)] {
        top.file(path, "as it was");
        let set = |path: &str, mode| {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(top.path(path), std::fs::Permissions::from_mode(mode))
                .unwrap();
        };
        set(path, mode);
        set(path.rsplit_once('/').unwrap().0, 0o777);
    }
    let image = shell_image(&host, &top).await;
    let code = "for at in /opt/open /home/other; do\n\
        echo x > $at/file; touch $at/new; mkdir $at/dir; mv $at/file $at/moved; rm -f $at/file\n\
        cat $at/file; ls $at; done 2>/dev/null\n\
        for at in / /usr /etc /home /run /sys /data /var; do touch $at/new 2>/dev/null && echo $at; done\n\
        touch /tmp/new /var/tmp/new /dev/shm/new ~/new && echo writable";
    let seen = host.output(&image, Language::Bash, code).await;
    assert_eq!(seen, "as it wasfile\nas it wasfile\nwritable\n");
    host.host.executor.stop().await;
}

async fn whiteouts_and_opaque_directories_hide_lower_layers() {
    let Some(host) = ImageHost::start(None).await else { return };
    let (lower, upper) = (LayerTree::with_merged_usr(), LayerTree::new());
    lower.commands();
    for path in ["opt/a/gone", "opt/a/kept", "opt/b/hidden", "opt/c/replaced"] {
        lower.file(path, "old");
    }
    upper.whiteout("opt/a/gone");
    upper.opaque_dir("opt/b");
    upper.file("opt/b/new", "new");
    upper.file("opt/c/replaced", "new");
    let image = host.image(&[&lower, &upper], &[BASH]).await;
    let seen = host.output(&image, Language::Bash, "ls /opt/a /opt/b; cat /opt/c/replaced").await;
    assert_eq!(seen, "/opt/a:\nkept\n\n/opt/b:\nnew\nnew");
    let swapped = ImageRoot { layers: image.layers.iter().rev().cloned().collect(), ..image };
    let seen = host.output(&swapped, Language::Bash, "cat /opt/a/gone /opt/b/* /opt/c/*").await;
    assert_eq!(seen, "oldoldnewold", "the order of the layers counts");
    host.host.executor.stop().await;
}

async fn links_in_the_place_of_mount_points_lead_no_mount_elsewhere() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    for pool in [None, Some(pool)] {
        let Some(host) = ImageHost::start(pool).await else { return };
        let (base, top) = (LayerTree::with_merged_usr(), LayerTree::new());
        base.commands();
        base.python(&[]);
        top.mkdir("opt/trap/pts");
        top.mkdir("opt/trap/baponi");
        for name in ["dev", "proc", "tmp", "home", "run", "sys", "data", "etc", "srv", "media"] {
            top.link("/opt/trap", name);
        }
        top.link("../../../../../opt/trap", "var");
        let image = host.image(&[&base, &top], &[PYTHON, BASH]).await;
        let code = "for at in proc dev tmp home home/baponi run sys data etc srv media var; do\n\
            [ -L /$at ] && echo link $at; done\n\
            cat /proc/self/stat > /dev/null && touch /tmp/t /dev/shm/s ~/h && cat /etc/hostname\n\
            ls -A /opt/trap /opt/trap/* /sys";
        let expected =
            "cloche\n/opt/trap:\nbaponi\npts\n\n/opt/trap/baponi:\n\n/opt/trap/pts:\n\n/sys:\n";
        assert_eq!(host.output(&image, Language::Bash, code).await, expected);
        let code = "import os; print(open('/proc/1/comm').read(), os.listdir('/opt/trap'))";
        for _ in 0..3 {
            let seen = host.output(&image, Language::Python, code).await;
            assert!(seen.starts_with("cloche\n "), "{seen}");
            assert!(!seen.contains("template"), "{seen}");
        }
        host.host.executor.stop().await;
    }
}

async fn two_images_and_the_host_serve_in_turn() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    let Some(host) = ImageHost::start(Some(pool)).await else { return };
    let (base, mut images) = (LayerTree::with_merged_usr(), Vec::new());
    base.commands();
    for name in ["one", "other"] {
        let top = LayerTree::new();
        top.file("opt/name", name);
        images.push((name, host.image(&[&base, &top], &[BASH]).await));
    }
    assert_eq!(images[0].1.layers[0], images[1].1.layers[0], "the base is stored once");
    for _ in 0..3 {
        for (name, image) in &images {
            assert_eq!(host.output(image, Language::Bash, "cat /opt/name").await, *name);
        }
        let spec = RunSpec::new(Language::Bash, "[ -e /opt/name ] || echo host");
        assert_eq!(host.host.run(spec).await.stdout.bytes, b"host\n");
    }
    host.host.executor.stop().await;
}

async fn a_thread_keeps_its_home_on_an_image() {
    let Some(host) = ImageHost::start(None).await else { return };
    let image = shell_image(&host, &LayerTree::with_file()).await;
    let mut thread = Thread::default();
    for (code, expected) in [("echo 1 > a; ls", "a\nmain.sh\n"), ("rm a; ls", "main.sh\n")] {
        let spec = RunSpec { sandbox: shape_of(&image), ..RunSpec::new(Language::Bash, code) };
        let outcome = thread.run(&host.host, spec).await;
        assert_eq!(outcome.stdout.to_text_lossy(), expected);
    }
    // The home is the same on another image.
    assert_eq!(thread.bash(&host.host, "touch b; ls").await, "b\nmain.sh\n");
    host.host.executor.stop().await;
}

async fn layers_of_a_running_cell_stay_and_those_of_an_idle_image_are_released() {
    let pool = PoolSettings { floor: 0, idle: Duration::from_millis(1), ..PoolSettings::default() };
    let Some(host) = ImageHost::with_cache(ByteSize::kib(64), Some(pool)).await else { return };
    let (one, other) = (LayerTree::with_file(), LayerTree::with_file());
    one.file("opt/name", "one");
    other.file("opt/name", "other");
    let (one, other) = (shell_image(&host, &one).await, shell_image(&host, &other).await);
    let (stay, stdin) = tokio::sync::mpsc::channel(1);
    let io = RunIo { stdin: Some(stdin), ..RunIo::default() };
    let code = "read line; cat /opt/name";
    let spec = RunSpec { sandbox: shape_of(&one), ..RunSpec::new(Language::Bash, code) };
    let staying = host.host.executor.run(spec, io);
    let layers = &host.host.layers;
    let meanwhile = async {
        eventually("the first cell has its image", async || layers.cache_usage().in_use == 2).await;
        // The cache is far too small for both.
        for _ in 0..3 {
            assert_eq!(host.output(&other, Language::Bash, "cat /opt/name").await, "other");
        }
        stay.send(b"go\n".to_vec()).await.unwrap();
    };
    let (outcome, ()) = tokio::join!(staying, meanwhile);
    assert_eq!(outcome.unwrap().stdout.bytes, b"one");
    eventually("no image is in use", async || layers.cache_usage().in_use == 0).await;
    for image in [&one, &other, &one] {
        host.output(image, Language::Bash, "cat /opt/name").await;
    }
    host.host.executor.stop().await;
}

async fn an_image_is_mounted_again_after_the_spawner_died() {
    let Some(host) = ImageHost::start(None).await else { return };
    let image = shell_image(&host, &LayerTree::with_file()).await;
    assert_eq!(host.output(&image, Language::Bash, "echo 1").await, "1\n");
    processes::kill(processes::youngest_child(processes::youngest_child(std::process::id())));
    assert_eq!(host.output(&image, Language::Bash, "echo 2").await, "2\n");
    host.host.executor.stop().await;
}

async fn an_image_that_cannot_be_mounted_is_an_error_and_nothing_runs() {
    let Some(host) = ImageHost::start(None).await else { return };
    let refusal = async |layers: Vec<LayerDigest>| {
        let image = image_of(layers, &[BASH]);
        let spec = RunSpec { sandbox: shape_of(&image), ..RunSpec::new(Language::Bash, "echo 1") };
        match host.host.executor.run(spec, RunIo::default()).await {
            Err(RunError::Image(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(refusal(Vec::new()).await.to_string().contains("no layers"));
    let missing = LayerDigest::from_sha256([9; 32]);
    assert!(matches!(refusal(vec![missing]).await, ImageMountError::Layer(_)));
    let tree = LayerTree::new();
    tree.file("a", "");
    let layer = host.store(&tree).await;
    assert!(refusal(vec![layer; 128]).await.to_string().contains("127 are allowed"));
    let spec = RunSpec {
        sandbox: shape_of(&shell_image(&host, &tree).await),
        ..RunSpec::new(Language::Python, "print(1)")
    };
    let error = host.host.executor.run(spec, RunIo::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "the image has no python; it has bash, sh");
    host.host.executor.stop().await;
}

async fn the_escape_probes_hold_on_an_image_in_cold_and_in_forked_cells() {
    let pool = PoolSettings { floor: 1, ..PoolSettings::default() };
    for pool in [None, Some(pool)] {
        let is_warm = pool.is_some();
        let Some(host) = ImageHost::start(pool).await else { return };
        let Some(image) = python_image(&host).await else { return };
        let (executor, decoys) = (host.host.executor.clone(), HostDecoys::create().unwrap());
        let runner = ProbeRunner { executor, decoys, shape: shape_of(&image) };
        let (mut held, mut broke) = (0, Vec::new());
        for probe in PROBES.iter().filter(|probe| !probe.alone && probe.language != Language::Node)
        {
            if is_warm {
                runner.warm_up(probe).await;
            }
            match runner.run_and_judge(probe).await {
                ProbeFinding::Decided(verdict) if verdict.held => held += 1,
                // This executor has no broker, so its cells have no network to attack.
                ProbeFinding::NotHere(_) if probe.name.starts_with("network-") => {}
                finding => broke.push(format!("{}: {finding:?}", probe.name)),
            }
        }
        assert!(broke.is_empty(), "warm {is_warm}: {broke:#?}");
        assert!(held > 40, "{held} probes");
        drop(runner);
        host.host.executor.stop().await;
    }
}
