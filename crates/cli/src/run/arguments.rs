//! The command line of `cloche run`: flags and their help. `program` interprets them.

use std::{path::PathBuf, time::Duration};

use clap::Args;
use cloche_model::{
    ByteSize, CpuShare, Invalid, Language, MountLimits, MountSlug, MountSource, MountSpec,
    Substrate,
};

/// The arguments of `cloche run`.
#[derive(Args)]
#[command(
    group(clap::ArgGroup::new("source").args(["file", "code"]).required(true)),
    after_help = "The exit code is the program's own: 128 + N if signal N ended it, 124 if it \
        timed out, 137 if it ran out of memory. 125 means that the sandbox could not be built, 2 \
        that the command line is invalid."
)]
pub(crate) struct RunArguments {
    /// The program's file; `-` reads the program from standard input.
    pub(super) file: Option<PathBuf>,
    /// The program itself.
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true)]
    pub(super) code: Option<String>,
    /// python, node or bash; by default guessed from the file's name or first line.
    #[arg(short, long)]
    pub(super) language: Option<Language>,
    /// The time limit: 30, 0.5, 500ms, 30s, 2m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(super) timeout: Option<Duration>,
    /// The memory of all its processes and files: 64M, 1G.
    #[arg(long, value_name = "SIZE")]
    pub(super) memory: Option<ByteSize>,
    /// Processor cores: 0.5, 2.
    #[arg(long, value_name = "CORES")]
    pub(super) cpus: Option<CpuShare>,
    /// The maximum number of processes and threads.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) pids: Option<u32>,
    /// The maximum number of bytes in files: 100M.
    #[arg(long, value_name = "SIZE")]
    pub(super) disk: Option<ByteSize>,
    /// What builds the sandbox: native, oci:crun, oci:runc or oci:runsc.
    #[arg(long, default_value = "native")]
    pub(super) substrate: Substrate,
    /// What the program can reach: blocked, unrestricted, or allowlist with --allow.
    #[arg(long, value_name = "POLICY", default_value = "blocked")]
    pub(super) network: String,
    /// A host or network of the allowlist, with ports if it needs others than 80 and 443. Can be
    /// repeated.
    #[arg(long, value_name = "RULE")]
    pub(super) allow: Vec<String>,
    /// An environment variable for the program; can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
    pub(super) env: Vec<(String, String)>,
    /// A file to copy into the program's directory; can be repeated.
    #[arg(long = "file", value_name = "PATH")]
    pub(super) files: Vec<PathBuf>,
    /// A directory to show the program at /data/NAME; with :ro it is read-only. Can be repeated.
    #[arg(long = "mount", value_name = "DIR:/data/NAME[:ro]", value_parser = parse_mount)]
    pub(super) mounts: Vec<MountSpec>,
    /// Print one JSON object at the end instead of live output.
    #[arg(long)]
    pub(super) json: bool,
    /// A wall that may be missing, by its name in `cloche doctor`; can be repeated.
    #[arg(long, value_name = "WALL", value_delimiter = ',')]
    pub(super) allow_missing: Vec<String>,
}

/// The longest time limit: a year.
const LONGEST: f64 = 366.0 * 86400.0;

/// Parses `30`, `0.5`, `500ms`, `30s`, `2m`, `1h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("cannot read {text:?} as a time such as 30, 0.5, 500ms or 2m");
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[number.len()..] {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(invalid()),
    };
    // Digits only, because a float also parses "inf", "1e9" and signs.
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(invalid());
    }
    let seconds = number.parse::<f64>().map_err(|_| invalid())? * unit;
    if seconds <= 0.0 {
        return Err("the time limit must be more than 0".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds.min(LONGEST)))
}

/// Parses `DIR:/data/NAME` and `DIR:/data/NAME:ro`. The directory may contain colons.
fn parse_mount(text: &str) -> Result<MountSpec, String> {
    let invalid = || format!("cannot read {text:?} as a mount such as ./reports:/data/reports:ro");
    let (rest, read_only) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (directory, path) = rest.rsplit_once(':').ok_or_else(invalid)?;
    let slug = path.strip_prefix("/data/").ok_or_else(invalid)?;
    let slug: MountSlug = slug.parse().map_err(|error: Invalid| error.to_string())?;
    if directory.is_empty() {
        return Err(invalid());
    }
    // The user owns the directory, so no limit of ours applies to its files.
    let limits = MountLimits { file_size: ByteSize(i64::MAX as u64), ..MountLimits::default() };
    let source = MountSource::Directory(PathBuf::from(directory));
    Ok(MountSpec { slug, source, read_only, limits })
}

/// Parses `NAME=VALUE`.
pub(crate) fn parse_variable(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("{text:?} has no value: write {text}=VALUE"))?;
    if name.is_empty() {
        return Err(format!("{text:?} has no name: write NAME=VALUE"));
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_parsed_with_their_units() {
        for (text, millis) in [
            ("30", 30_000),
            ("0.5", 500),
            (".5", 500),
            ("500ms", 500),
            ("2m", 120_000),
            ("1.5s", 1500),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "0", "0ms", "-1", "inf", "NaN", "1e9", "5 s", "5d", "1.2.3"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_mount_has_a_directory_and_a_name_below_data() {
        let mount = parse_mount("/a:b:/data/reports:ro").unwrap();
        assert_eq!((mount.slug.as_str(), mount.read_only), ("reports", true));
        assert_eq!(mount.source, MountSource::Directory("/a:b".into()));
        assert!(!parse_mount(".:/data/x").unwrap().read_only);
        for text in ["", "x", "x:y", "x:/data/", "x:/data/a/b", "x:/data/..", ":/data/x", "x:/etc"]
        {
            assert!(parse_mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        assert_eq!(parse_variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(parse_variable("A="), Ok(("A".into(), String::new())));
        assert_eq!(parse_variable("A"), Err("\"A\" has no value: write A=VALUE".into()));
        assert!(parse_variable("=x").is_err());
    }
}
