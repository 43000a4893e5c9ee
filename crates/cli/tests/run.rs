//! `cloche run`, as someone at a terminal meets it.

use std::{
    fs,
    io::{Read, Write},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

#[path = "support/cloche.rs"]
mod support;

use support::{binary, can_sandbox, cloche, cloche_fed, run};

#[test]
fn the_exit_code_is_the_program_s() {
    if !can_sandbox() {
        return;
    }
    assert_eq!(run("python", "import sys; sys.exit(7)").code, 7);
    assert_eq!(run("node", "process.exit(9)").code, 9);
    assert_eq!(run("bash", "exit 255").code, 255);
    assert_eq!(run("bash", "kill -SEGV $$").code, 128 + 11);
    assert_eq!(run("bash", "kill -KILL $$").code, 128 + 9);
}

#[test]
fn output_goes_where_the_program_sent_it() {
    if !can_sandbox() {
        return;
    }
    let ended = run("python", "import sys; print('out'); print('err', file=sys.stderr)");
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));
}

#[test]
fn a_directory_is_mounted_for_a_single_run() {
    if !can_sandbox() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("in.txt"), "given").unwrap();
    let path = directory.path().display();
    let code =
        "print(open('/data/work/in.txt').read())\nopen('/data/work/out.txt', 'w').write('made')";
    let ended = cloche(["run", "--mount", &format!("{path}:/data/work"), "-c", code]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "given\n"), "{ended:?}");
    assert_eq!(fs::read_to_string(directory.path().join("out.txt")).unwrap(), "made");
    let code = "import errno\ntry: open('/data/work/no.txt', 'w')\n\
                except OSError as error: print(errno.errorcode[error.errno])";
    let ended = cloche(["run", "--mount", &format!("{path}:/data/work:ro"), "-c", code]);
    assert_eq!(ended.stdout, "EROFS\n", "{ended:?}");
    assert!(!directory.path().join("no.txt").exists());
    let ended = cloche(["run", "--mount", "/nonexistent:/data/work", "-c", "print('ran')"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{ended:?}");
    assert!(ended.stderr.contains("/nonexistent is not a directory"), "{ended:?}");
    for wrong in [format!("{path}:/etc/work"), format!("{path}:/data/../etc"), path.to_string()] {
        assert_eq!(cloche(["run", "--mount", &wrong, "-c", "print('ran')"]).code, 2, "{wrong}");
    }
}

#[test]
fn a_program_out_of_time_is_ended_with_124() {
    if !can_sandbox() {
        return;
    }
    let ended = cloche(["run", "--timeout", "0.3", "-c", "print('so far')\nwhile True: pass"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (124, "so far\n"));
    assert_eq!(ended.stderr, "cloche: timed out after 0.3 s; raise the limit with --timeout\n");
}

#[test]
fn a_program_out_of_memory_is_ended_with_137() {
    if !can_sandbox() {
        return;
    }
    let ended = cloche(["run", "--memory", "64M", "-c", "x = b'x' * (1 << 30)"]);
    assert_eq!(ended.code, 137, "{ended:?}");
    let sentence = "out of memory: the program reached its limit of 64 MiB; raise it with --memory";
    assert_eq!(ended.stderr, format!("cloche: {sentence}\n"));
}

#[test]
fn a_traceback_reads_as_if_started_by_hand() {
    if !can_sandbox() {
        return;
    }
    let ended = run("python", "raise ValueError('no')");
    assert_eq!(ended.code, 1);
    let expected = "Traceback (most recent call last):\n  \
        File \"/home/baponi/main.py\", line 1, in <module>\n    \
        raise ValueError('no')\nValueError: no\n";
    assert_eq!(ended.stderr, expected);
    let ended = run("node", "null.x");
    assert!(ended.stderr.starts_with("/home/baponi/main.js:1\n"), "{ended:?}");
    let ended = run("bash", "nonesuch");
    assert_eq!(ended.stderr, "/home/baponi/main.sh: line 1: nonesuch: command not found\n");
}

#[test]
fn the_program_knows_its_place() {
    if !can_sandbox() {
        return;
    }
    let code = "import os, sys, getpass\n\
        print(os.getcwd(), getpass.getuser(), sys.argv, __file__, __name__, os.environ['HOME'])";
    let said = run("python", code).printed();
    assert_eq!(
        said,
        "/home/baponi baponi ['/home/baponi/main.py'] /home/baponi/main.py __main__ /home/baponi\n"
    );
}

#[test]
fn the_language_is_guessed_from_the_name_or_the_first_line() {
    if !can_sandbox() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("a.py", "print('python')", "python"),
        ("b.mjs", "console.log(typeof await 'node' && 'node')", "node"),
        ("c.sh", "echo ${BASH:+bash}", "bash"),
        ("d", "#!/usr/bin/env node\nconsole.log('node')", "node"),
    ];
    for (name, code, language) in cases {
        let path = dir.path().join(name);
        fs::write(&path, code).unwrap();
        assert_eq!(cloche(["run", path.to_str().unwrap()]).printed(), format!("{language}\n"));
    }
}

#[test]
fn a_file_of_unknown_language_needs_to_be_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    fs::write(&path, "print(1)").unwrap();
    let ended = cloche(["run", path.to_str().unwrap()]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("give --language python, node or bash"), "{ended:?}");
}

#[test]
fn code_comes_from_standard_input_too() {
    if !can_sandbox() {
        return;
    }
    let program = b"import sys\nprint(repr(sys.stdin.read()))";
    assert_eq!(cloche_fed(["run", "-"], program).printed(), "''\n");
    assert_eq!(cloche_fed(["run", "-"], b"#!/bin/bash\necho $((6*7))").printed(), "42\n");
    assert_eq!(cloche_fed(["run", "--language", "bash", "-"], b"echo hi").printed(), "hi\n");
}

#[test]
fn standard_input_is_the_program_s() {
    if !can_sandbox() {
        return;
    }
    let code = "import sys; data = sys.stdin.buffer.read(); print(len(data), data[-3:])";
    let input: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    let ended = cloche_fed(["run", "-c", code], &input);
    assert_eq!(ended.printed(), "1048576 b'\\xfd\\xfe\\xff'\n");
}

#[test]
fn an_input_that_never_ends_does_not_keep_us() {
    if !can_sandbox() {
        return;
    }
    let mut child = Command::new(binary())
        .args(["run", "-c", "print(1)"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Held open until the end of the test.
    let _stdin = child.stdin.take().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(30), "it waits for its input");
        std::thread::yield_now();
    }
}

#[test]
fn output_arrives_while_the_program_runs() {
    if !can_sandbox() {
        return;
    }
    let mut child = Command::new(binary())
        .args(["run", "-c", "print('ready?'); print(input())"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 7];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"ready?\n");
    child.stdin.take().unwrap().write_all(b"yes\n").unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), child.wait().unwrap().code()), ("yes\n", Some(0)));
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    if !can_sandbox() {
        return;
    }
    let code = "import sys; sys.stdout.buffer.write(bytes(range(256)))";
    assert_eq!(run("python", code).bytes, (0..=255).collect::<Vec<u8>>());
    let ended = cloche(["run", "--json", "-c", "import os; os.write(1, b'a\\xffb')"]);
    assert_eq!(ended.json()["stdout"], "a\u{fffd}b");
}

#[test]
fn a_lot_of_output_arrives_whole() {
    if !can_sandbox() {
        return;
    }
    let ended = run("bash", "head -c 40000000 /dev/zero | tr '\\0' x; echo end >&2");
    assert_eq!((ended.bytes.len(), ended.stderr.as_str()), (40_000_000, "end\n"));
}

#[test]
fn a_reader_that_has_had_enough_ends_the_program_quietly() {
    if !can_sandbox() {
        return;
    }
    let script =
        format!("{} run --language bash -c yes | head -1; exit ${{PIPESTATUS[0]}}", binary());
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]);
    let ended = support::ended(bash, b"");
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (141, "y\n", ""));
}

#[test]
fn variables_reach_the_program() {
    if !can_sandbox() {
        return;
    }
    let ended =
        cloche(["run", "--env", "A=1", "--env", "B=x=y z", "-l", "bash", "-c", "echo \"$A|$B\""]);
    assert_eq!(ended.printed(), "1|x=y z\n");
    let ended = cloche(["run", "--env", "A", "-c", "1"]);
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("\"A\" has no value: write A=VALUE"), "{ended:?}");
}

#[test]
fn nothing_of_our_environment_leaks_in() {
    if !can_sandbox() {
        return;
    }
    let mut command = Command::new(binary());
    command.env("SECRET_OF_OURS", "1").args([
        "run",
        "-l",
        "bash",
        "-c",
        "env; cat /proc/*/environ",
    ]);
    let ended = support::ended(command, b"");
    assert!(!ended.stdout.contains("SECRET_OF_OURS"), "{ended:?}");
}

#[test]
fn files_are_copied_in_under_their_names() {
    if !can_sandbox() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("data.csv"), dir.path().join("lib.py"));
    fs::write(&one, "1,2\n").unwrap();
    fs::write(&two, "answer = 42").unwrap();
    let code = "import lib; print(lib.answer, open('data.csv').read().strip())";
    let (one, two) = (one.to_str().unwrap(), two.to_str().unwrap());
    assert_eq!(cloche(["run", "--file", one, "--file", two, "-c", code]).printed(), "42 1,2\n");
    assert_eq!(fs::read_to_string(one).unwrap(), "1,2\n");
}

#[test]
fn files_that_cannot_be_copied_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let [main, big, small] = ["main.py", "big", "small"].map(|name| dir.path().join(name));
    fs::write(&main, "").unwrap();
    fs::write(&small, "").unwrap();
    fs::File::create(&big).unwrap().set_len(2 << 20).unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let cases = [
        (vec![path(&dir.path().join("gone"))], "cannot read "),
        (vec![path(dir.path())], "is a directory: --file takes files"),
        (vec![path(&main)], "two files would have the name main.py"),
        (vec![path(&small), path(&small)], "two files would have the name small"),
        (vec![path(&big)], "exceed the disk limit of 1 MiB; raise it with --disk"),
        (vec!["/dev/zero".to_owned()], "exceed the disk limit of 1 MiB"),
        (vec!["..".to_owned()], "has no file name"),
    ];
    for (files, sentence) in cases {
        let mut arguments = vec!["run".to_owned(), "--disk".into(), "1M".into(), "-c1".into()];
        arguments.extend(files.into_iter().flat_map(|file| ["--file".to_owned(), file]));
        let ended = cloche(&arguments);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(sentence), "{sentence}: {ended:?}");
    }
}

#[test]
fn limits_hold() {
    if !can_sandbox() {
        return;
    }
    let disk = cloche(["run", "--disk", "1M", "-l", "bash", "-c", "head -c 2M /dev/zero > x"]);
    assert!(disk.stderr.contains("No space left on device"), "{disk:?}");
    let code = "for i in $(seq 20); do sleep 60 & done; wait -n; kill $(jobs -p)";
    let pids = cloche(["run", "--pids", "8", "-l", "bash", "--timeout", "5", "-c", code]);
    assert!(pids.stderr.contains("Resource temporarily unavailable"), "{pids:?}");
}

#[test]
fn json_says_everything_in_one_object() {
    if !can_sandbox() {
        return;
    }
    let code = "import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)";
    let ended = cloche(["run", "--json", "-c", code]);
    let json = ended.json();
    assert_eq!((ended.code, ended.stderr.as_str()), (3, ""));
    let expected = serde_json::json!({
        "language": "python", "status": "failed", "exit_code": 3, "stdout": "o\n", "stderr": "e\n",
        "stdout_truncated": false, "stderr_truncated": false,
        "stdout_dropped_bytes": 0, "stderr_dropped_bytes": 0,
        "duration_ms": json["duration_ms"], "cpu_ms": json["cpu_ms"],
        "peak_memory_bytes": json["peak_memory_bytes"],
    });
    assert_eq!(json, expected);
    assert!(json["duration_ms"].as_u64().is_some_and(|time| time > 0), "{json}");
    let statuses = [
        (vec!["-c", "1"], "success", 0),
        (vec!["--timeout", "200ms", "-c", "while 1: pass"], "timeout", 124),
        (vec!["--memory", "64M", "-c", "b'x' * (1 << 30)"], "oom", 137),
    ];
    for (arguments, status, code) in statuses {
        let ended = cloche(["run", "--json"].into_iter().chain(arguments));
        assert_eq!((ended.json()["status"].as_str(), ended.code), (Some(status), code));
    }
}

#[test]
fn json_says_what_it_left_out() {
    if !can_sandbox() {
        return;
    }
    let ended = cloche(["run", "--json", "-l", "bash", "-c", "head -c 17M /dev/zero | tr '\\0' x"]);
    let json = ended.json();
    assert_eq!(json["stdout"].as_str().map(str::len), Some(16 << 20));
    assert_eq!(json["stdout_truncated"], true);
    assert_eq!(json["stdout_dropped_bytes"], 1 << 20);
}

#[test]
fn a_daemon_that_holds_the_output_does_not_hold_us() {
    if !can_sandbox() {
        return;
    }
    let began = Instant::now();
    assert_eq!(run("bash", "sleep 50 & echo done").printed(), "done\n");
    assert!(began.elapsed() < Duration::from_secs(25));
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_with_2() {
    for arguments in [
        vec!["run"],
        vec!["run", "-c", "1", "a.py"],
        vec!["run", "-c", "1", "--language", "ruby"],
        vec!["run", "-c", "1", "--timeout", "soon"],
        vec!["run", "-c", "1", "--memory", "lots"],
        vec!["run", "-c", "1", "--cpus", "0"],
        vec!["run", "-c", "1", "--pids", "0"],
        vec!["run", "/nonexistent.py"],
        vec!["run", "/"],
    ] {
        let ended = cloche(&arguments);
        assert_eq!((ended.code, ended.stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(!ended.stderr.is_empty());
    }
}
