//! Runs in: test. Images on every substrate: a root of layers under a runtime that did not make it.

use cloche_executor::{HOME, RunIo};
use cloche_model::{ImageRoot, Language, RunEnding, RunSpec, SandboxShape, Substrate};
use cloche_test_support::{own_main::OwnTest, own_tests};
use cloche_verify::{
    HostDecoys, PROBES, Probe, ProbeFinding, ProbeRunner, probes::ProbeGroup,
    substrates::why_not_applied,
};

use crate::{
    homes_host::Thread,
    image_host::{BASH, ImageHost, LayerTree, PYTHON_PREFIX, python_image, shape_of},
    substrates::startable,
};

pub(crate) const TESTS: &[OwnTest] = own_tests![
    a_program_has_the_interpreter_and_the_files_of_its_image_on_every_substrate,
    nothing_of_an_image_can_be_written_on_every_substrate,
    links_of_an_image_lead_no_mount_elsewhere_on_every_substrate,
    a_thread_on_an_image_keeps_its_home_when_its_substrate_changes,
    the_probes_that_apply_hold_on_an_image_on_every_substrate,
];

fn spec_on(substrate: Substrate, image: &ImageRoot, language: Language, code: &str) -> RunSpec {
    let mut spec = RunSpec::new(language, code);
    spec.sandbox = SandboxShape { substrate, ..shape_of(image) };
    spec
}

/// The output of a program that must succeed.
async fn output(host: &ImageHost, spec: RunSpec) -> String {
    let substrate = spec.sandbox.substrate;
    let outcome = host.host.executor.run(spec, RunIo::default()).await;
    let outcome = outcome.unwrap_or_else(|error| panic!("{substrate}: {error}"));
    assert_eq!(outcome.ending, RunEnding::Exited(0), "{substrate}: {outcome:?}");
    outcome.stdout.to_text_lossy()
}

async fn a_program_has_the_interpreter_and_the_files_of_its_image_on_every_substrate() {
    let Some(host) = ImageHost::start(None).await else { return };
    let Some(mut image) = python_image(&host).await else { return };
    image.env.insert("OF_THE_IMAGE".to_owned(), "set".to_owned());
    let code = "import os, sys, pwd\nprint(sys.prefix, sys.executable, os.getcwd())\n\
        print(open('/opt/says').read(), os.path.exists('/usr/bin/python3'))\n\
        print(pwd.getpwuid(os.getuid()).pw_name, os.stat('/opt/says').st_uid)\n\
        print(os.environ['OF_THE_IMAGE'], open('/etc/hostname').read(), end='')";
    let expected = format!(
        "{PYTHON_PREFIX} {PYTHON_PREFIX}/bin/python3 {HOME}\nthe image False\nbaponi 0\n\
         set cloche\n"
    );
    for substrate in startable(&host.host.executor).await {
        let seen = output(&host, spec_on(substrate, &image, Language::Python, code)).await;
        assert_eq!(seen, expected, "{substrate}");
        let seen =
            output(&host, spec_on(substrate, &image, Language::Bash, "echo /*; echo $0")).await;
        assert!(seen.ends_with("/home/baponi/main.sh\n"), "{substrate}: {seen}");
        for hidden in ["boot", "layers", "stage", "image"] {
            let hidden = format!("/{hidden}");
            let is_seen = seen.split_whitespace().any(|name| name == hidden);
            assert!(!is_seen, "{substrate} shows {hidden}: {seen}");
        }
    }
    host.host.executor.stop().await;
}

async fn nothing_of_an_image_can_be_written_on_every_substrate() {
    use std::os::unix::fs::PermissionsExt;
    let Some(host) = ImageHost::start(None).await else { return };
    let (base, top) = (LayerTree::with_merged_usr(), LayerTree::new());
    base.commands();
    top.file("opt/open/file", "as it was");
    for (path, mode) in [("opt/open/file", 0o666), ("opt/open", 0o777)] {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(top.path(path), mode).unwrap();
    }
    let image = host.image(&[&base, &top], &[BASH]).await;
    let code = "at=/opt/open\n{ echo x > $at/file; touch $at/new; mkdir $at/dir; \
        mv $at/file $at/moved; rm -f $at/file; } 2>/dev/null\ncat $at/file; echo $at/*\n\
        for at in / /usr /etc /home /run /sys /data /var /dev; do \
        touch $at/new 2>/dev/null && echo $at; done\n\
        touch /tmp/new /var/tmp/new /dev/shm/new ~/new && echo writable";
    for substrate in startable(&host.host.executor).await {
        let seen = output(&host, spec_on(substrate, &image, Language::Bash, code)).await;
        assert_eq!(seen, "as it was/opt/open/file\nwritable\n", "{substrate}");
    }
    host.host.executor.stop().await;
}

async fn links_of_an_image_lead_no_mount_elsewhere_on_every_substrate() {
    let Some(host) = ImageHost::start(None).await else { return };
    let (base, top) = (LayerTree::with_merged_usr(), LayerTree::new());
    base.commands();
    top.mkdir("opt/trap/pts");
    top.mkdir("opt/trap/baponi");
    for name in ["dev", "proc", "tmp", "home", "run", "sys", "data", "etc", "srv", "media"] {
        top.link("/opt/trap", name);
    }
    top.link("../../../../../opt/trap", "var");
    let image = host.image(&[&base, &top], &[BASH]).await;
    let code = "for at in proc dev tmp home home/baponi run sys data etc srv media var; do\n\
        [ -L /$at ] && echo link $at; done\n\
        cat /proc/self/stat > /dev/null && touch /tmp/t /dev/shm/s ~/h && cat /etc/hostname\n\
        shopt -s dotglob; echo /opt/trap/* /opt/trap/*/*";
    let expected = "cloche\n/opt/trap/baponi /opt/trap/pts /opt/trap/*/*\n";
    for substrate in startable(&host.host.executor).await {
        let seen = output(&host, spec_on(substrate, &image, Language::Bash, code)).await;
        assert_eq!(seen, expected, "{substrate}");
    }
    host.host.executor.stop().await;
}

async fn a_thread_on_an_image_keeps_its_home_when_its_substrate_changes() {
    let Some(host) = ImageHost::start(None).await else { return };
    let base = LayerTree::with_merged_usr();
    base.commands();
    let image = host.image(&[&base], &[BASH]).await;
    let (mut thread, mut expected) = (Thread::default(), String::new());
    for substrate in startable(&host.host.executor).await {
        let code = format!("cat log 2>/dev/null; echo {substrate} >> log");
        let spec = spec_on(substrate, &image, Language::Bash, &code);
        let outcome = thread.run(&host.host, spec).await;
        assert_eq!(outcome.stdout.to_text_lossy(), expected, "{substrate}: {outcome:?}");
        expected += &format!("{substrate}\n");
    }
    host.host.executor.stop().await;
}

async fn the_probes_that_apply_hold_on_an_image_on_every_substrate() {
    let Some(host) = ImageHost::start(None).await else { return };
    let Some(image) = python_image(&host).await else { return };
    let others = startable(&host.host.executor).await.into_iter();
    for substrate in others.filter(|substrate| *substrate != Substrate::Native) {
        let (executor, decoys) = (host.host.executor.clone(), HostDecoys::create().unwrap());
        let shape = SandboxShape { substrate, ..shape_of(&image) };
        let runner = ProbeRunner { executor, decoys, shape };
        let (mut held, mut broke) = (0, Vec::new());
        // An image changes what there is of the host, and nothing of the other walls.
        let of_files = |probe: &&Probe| probe.group == ProbeGroup::HostBoundary && !probe.alone;
        for probe in PROBES.iter().filter(of_files) {
            if why_not_applied(substrate, probe).is_some() {
                continue;
            }
            match runner.run_and_judge(probe).await {
                ProbeFinding::Decided(verdict) if verdict.held => held += 1,
                finding => broke.push(format!("{}: {finding:?}", probe.name)),
            }
        }
        assert!(broke.is_empty(), "{substrate}: {broke:#?}");
        assert!(held > 9, "{substrate}: {held} probes");
    }
    host.host.executor.stop().await;
}
