//! Embeds the built files of the console, if `console/dist` has any: each file, and its compressed
//! forms `.br` and `.gz` beside it. Without them the server says how to get them.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// A directory that every checkout has, so that Cargo does not run this again without a reason.
const DIST: &str = "../../console/dist";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={DIST}");
    let mut files = Vec::new();
    let root = Path::new(DIST);
    if root.join("index.html").is_file() {
        let root = root.canonicalize()?;
        collect_files(&root, &root, &mut files)?;
    }
    files.sort();
    let mut table = String::from("&[\n");
    for (name, path) in &files {
        let compressed = |ending: &str| {
            let path = PathBuf::from(format!("{}.{ending}", path.display()));
            if path.is_file() { format!("Some(include_bytes!({path:?}))") } else { "None".into() }
        };
        let (br, gz) = (compressed("br"), compressed("gz"));
        table += &format!(
            "    ConsoleFile {{ name: {name:?}, plain: include_bytes!({path:?}), \
             brotli: {br}, gzip: {gz} }},\n"
        );
    }
    table += "]\n";
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    fs::write(out.join("console_files.rs"), table)
}

fn collect_files(root: &Path, dir: &Path, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_files(root, &path, files)?;
            continue;
        }
        let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes()[0] == b'.');
        let is_compressed = path.extension().is_some_and(|kind| kind == "br" || kind == "gz");
        let name = path.strip_prefix(root).ok().and_then(Path::to_str).map(str::to_owned);
        if let Some(name) = name.filter(|_| !is_hidden && !is_compressed) {
            files.push((name, path));
        }
    }
    Ok(())
}
