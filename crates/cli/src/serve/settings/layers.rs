//! Where layers are stored: `[layers]` of the file, or flags and the environment.

use std::path::{Path, PathBuf};

use clap::Args;
use cloche_layers::{LayerBounds, LayersConfig, S3Config, StoreConfig};
use cloche_model::ByteSize;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{SettingsError, parse_size};

/// The default limit of the disk space of unpacked layers.
const CACHE: ByteSize = ByteSize::gib(20);

/// The section of the file. Keys are named by environment variable, so the file has no secrets.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LayersFile {
    /// Disk space for unpacked layers.
    #[schemars(extend("default" = "20G"))]
    cache: Option<String>,
    /// A directory for layers that other processes of the same user share, such as sidecars.
    #[schemars(extend("x-default" = "in the data directory", "x-argument" = "directory"))]
    directory: Option<PathBuf>,
    /// A bucket for layers instead of the data directory.
    #[schemars(extend("x-default" = "none", "x-argument" = "bucket"))]
    bucket: Option<String>,
    /// The address of the S3-compatible service of the bucket.
    #[schemars(extend("x-default" = "the bucket's at AWS", "x-argument" = "endpoint"))]
    endpoint: Option<String>,
    /// The region of the bucket.
    #[schemars(extend("x-default" = "us-east-1", "x-argument" = "region"))]
    region: Option<String>,
    /// The prefix of all object names.
    #[schemars(extend("x-default" = "none", "x-argument" = "prefix"))]
    prefix: Option<String>,
    /// The environment variable with the access key of the bucket.
    #[schemars(extend("x-default" = "AWS_ACCESS_KEY_ID"))]
    access_key_env: Option<String>,
    /// The environment variable with the secret key of the bucket.
    #[schemars(extend("x-default" = "AWS_SECRET_ACCESS_KEY"))]
    secret_key_env: Option<String>,
}

/// The same settings as flags.
#[derive(Args, Default)]
pub(crate) struct LayersArguments {
    /// A directory for layers that other processes of the same user share, e.g. sidecars.
    #[arg(long = "layers-dir", env = "CLOCHE_LAYERS_DIR", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// A bucket for layers instead of the data directory; its keys are read from the environment.
    #[arg(long = "layers-bucket", env = "CLOCHE_LAYERS_BUCKET", value_name = "NAME")]
    bucket: Option<String>,
    /// The address of the S3-compatible service of the bucket.
    #[arg(long = "layers-endpoint", env = "CLOCHE_LAYERS_ENDPOINT", value_name = "URL")]
    endpoint: Option<String>,
    /// The region of the bucket [default: us-east-1].
    #[arg(long = "layers-region", env = "CLOCHE_LAYERS_REGION", value_name = "NAME")]
    region: Option<String>,
    /// The prefix of all object names.
    #[arg(long = "layers-prefix", env = "CLOCHE_LAYERS_PREFIX", value_name = "TEXT")]
    prefix: Option<String>,
}

pub(crate) fn layers_config(
    file: LayersFile,
    arguments: LayersArguments,
    data_dir: &Path,
) -> Result<LayersConfig, SettingsError> {
    let cache_bytes = parse_size("layers.cache", &file.cache)?.unwrap_or(CACHE);
    Ok(LayersConfig {
        dir: data_dir.join("layers"),
        store: store_config(file, arguments)?,
        cache_bytes,
        bounds: LayerBounds::default(),
    })
}

/// Makes a path absolute, because the server leaves its start directory.
pub(crate) fn absolute_path(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn store_config(
    file: LayersFile,
    arguments: LayersArguments,
) -> Result<StoreConfig, SettingsError> {
    let endpoint = arguments.endpoint.or(file.endpoint);
    let region = arguments.region.or(file.region);
    let prefix = arguments.prefix.or(file.prefix);
    let directory = arguments.directory.or(file.directory);
    let Some(bucket) = arguments.bucket.or(file.bucket) else {
        let keys = file.access_key_env.or(file.secret_key_env);
        // An incomplete bucket configuration must not store layers on the local disk.
        return match (endpoint.or(region).or(prefix).or(keys), directory) {
            (Some(_), _) => Err(SettingsError::Bucket),
            (None, Some(directory)) => Ok(StoreConfig::Directory(absolute_path(directory))),
            (None, None) => Ok(StoreConfig::Local),
        };
    };
    if directory.is_some() {
        return Err(SettingsError::TwoLayerStores);
    }
    let name = |name: Option<String>, usual: &str| name.unwrap_or_else(|| usual.to_owned());
    Ok(StoreConfig::S3(S3Config {
        bucket,
        endpoint,
        region: name(region, "us-east-1"),
        prefix: name(prefix, ""),
        access_key_env: name(file.access_key_env, "AWS_ACCESS_KEY_ID"),
        secret_key_env: name(file.secret_key_env, "AWS_SECRET_ACCESS_KEY"),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_in_the_data_directory_unless_a_bucket_is_set() {
        let usual =
            layers_config(LayersFile::default(), LayersArguments::default(), Path::new("d"))
                .unwrap();
        assert_eq!(usual.dir, Path::new("d/layers"));
        assert!(matches!(usual.store, StoreConfig::Local));
        let file: LayersFile =
            toml::from_str("bucket = \"b\"\nprefix = \"p/\"\ncache = \"1G\"\n").unwrap();
        let arguments =
            LayersArguments { region: Some("eu".to_owned()), ..LayersArguments::default() };
        let config = layers_config(file, arguments, Path::new("d")).unwrap();
        let StoreConfig::S3(bucket) = config.store else { panic!("no bucket") };
        assert_eq!((bucket.bucket.as_str(), bucket.region.as_str()), ("b", "eu"));
        assert_eq!(config.cache_bytes, ByteSize::gib(1));
    }

    #[test]
    fn a_shared_directory_excludes_a_bucket() {
        let config = |text: &str| {
            let file: LayersFile = toml::from_str(text).unwrap();
            layers_config(file, LayersArguments::default(), Path::new("d"))
        };
        let shared = config("directory = \"/srv/layers\"").unwrap();
        let StoreConfig::Directory(path) = shared.store else { panic!("no directory") };
        assert_eq!(
            (path.as_path(), shared.dir.as_path()),
            ("/srv/layers".as_ref(), "d/layers".as_ref())
        );
        let error = config("directory = \"/srv/layers\"\nbucket = \"b\"").unwrap_err();
        assert!(matches!(error, SettingsError::TwoLayerStores));
    }

    #[test]
    fn bucket_settings_without_a_bucket_are_an_error() {
        let file: LayersFile = toml::from_str("endpoint = \"http://127.0.0.1:1\"").unwrap();
        assert!(layers_config(file, LayersArguments::default(), Path::new("d")).is_err());
    }
}
