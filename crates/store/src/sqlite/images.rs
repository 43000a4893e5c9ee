//! Runs in: server (no capabilities).
//!
//! Images, in SQLite.

use async_trait::async_trait;
use cloche_model::{ImageDigest, ImageLayer, ImageName, ImageRecord, LayerDigest, ListedImage};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore,
    row_reader::{read_json, read_parsed, read_parsed_or_null, to_json},
};
use crate::{ImageRemoval, ImageStore, Result, StoreError};

/// The sandboxes whose image has this digest. The image of a sandbox is `NAME@DIGEST` or `DIGEST`.
const USERS: &str = "SELECT t.name || '/' || s.name AS user FROM sandboxes s \
     JOIN teams t ON t.id = s.team_id \
     WHERE substr(json_extract(s.shape, '$.image'), -71) = ? ORDER BY user";

#[async_trait]
impl ImageStore for SqliteStore {
    async fn put_image(&self, image: &ImageRecord, names: &[ImageName]) -> Result<()> {
        let (image, names) = (image.clone(), names.to_vec());
        self.writer
            .run_durable(move |connection| Box::pin(put_image_rows(connection, image, names)))
            .await
    }

    async fn find_image(&self, digest: &ImageDigest) -> Result<Option<ImageRecord>> {
        let row = sqlx::query("SELECT record FROM images WHERE digest = ?")
            .bind(digest.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(image_from_row).transpose()
    }

    async fn find_image_by_name(&self, name: &ImageName) -> Result<Option<ImageRecord>> {
        let row = sqlx::query(
            "SELECT record FROM images i JOIN image_names n ON n.image = i.digest WHERE n.name = ?",
        )
        .bind(name.to_string())
        .fetch_optional(&self.readers)
        .await?;
        row.as_ref().map(image_from_row).transpose()
    }

    async fn list_images(&self) -> Result<Vec<ListedImage>> {
        let rows = sqlx::query("SELECT digest, record FROM images ORDER BY added_at, digest")
            .fetch_all(&self.readers)
            .await?;
        let mut images = Vec::with_capacity(rows.len());
        for row in &rows {
            let digest: ImageDigest = read_parsed(row, "digest")?;
            let names = sqlx::query("SELECT name FROM image_names WHERE image = ? ORDER BY name")
                .bind(digest.as_str())
                .fetch_all(&self.readers)
                .await?;
            let names: Result<_> = names.iter().map(|row| read_parsed(row, "name")).collect();
            let users =
                sqlx::query(USERS).bind(digest.to_string()).fetch_all(&self.readers).await?;
            let used_by: std::result::Result<_, sqlx::Error> =
                users.iter().map(|row| row.try_get("user")).collect();
            images.push(ListedImage {
                image: image_from_row(row)?,
                names: names?,
                used_by: used_by?,
            });
        }
        Ok(images)
    }

    async fn find_image_layer(&self, source: &LayerDigest) -> Result<Option<ImageLayer>> {
        let row = sqlx::query(
            "SELECT l.position, i.record FROM image_layers l JOIN images i ON i.digest = l.image \
             WHERE l.source = ? LIMIT 1",
        )
        .bind(source.as_str())
        .fetch_optional(&self.readers)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let position: i64 = row.try_get("position")?;
        let layers = image_from_row(&row)?.layers;
        let at = usize::try_from(position).unwrap_or(usize::MAX);
        Ok(layers.into_iter().nth(at).filter(|layer| layer.source == *source))
    }

    async fn remove_image(&self, digest: &ImageDigest) -> Result<ImageRemoval> {
        let digest = digest.to_string();
        self.writer
            .run_durable(move |connection| Box::pin(remove_image_rows(connection, digest)))
            .await
    }
}

fn image_from_row(row: &SqliteRow) -> Result<ImageRecord> {
    read_json(row, "record")
}

async fn put_image_rows(
    connection: &mut SqliteConnection,
    image: ImageRecord,
    names: Vec<ImageName>,
) -> Result<()> {
    let digest = image.digest.to_string();
    sqlx::query("INSERT OR REPLACE INTO images (digest, record, added_at) VALUES (?, ?, ?)")
        .bind(digest.clone())
        .bind(to_json("record", &image)?)
        .bind(image.added_at.0)
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM image_layers WHERE image = ?")
        .bind(digest.clone())
        .execute(&mut *connection)
        .await?;
    for (position, layer) in (0_i64..).zip(&image.layers) {
        sqlx::query(
            "INSERT INTO image_layers (image, position, source, layer) VALUES (?, ?, ?, ?)",
        )
        .bind(digest.clone())
        .bind(position)
        .bind(layer.source.to_string())
        .bind(layer.stored.as_ref().map(|layer| layer.digest.to_string()))
        .execute(&mut *connection)
        .await?;
    }
    for name in names {
        sqlx::query("INSERT OR REPLACE INTO image_names (name, image) VALUES (?, ?)")
            .bind(name.to_string())
            .bind(digest.clone())
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

async fn remove_image_rows(
    connection: &mut SqliteConnection,
    digest: String,
) -> Result<ImageRemoval> {
    let users = sqlx::query(USERS).bind(digest.clone()).fetch_all(&mut *connection).await?;
    if !users.is_empty() {
        let users: std::result::Result<_, sqlx::Error> =
            users.iter().map(|row| row.try_get("user")).collect();
        return Ok(ImageRemoval::InUse(users?));
    }
    let rows = sqlx::query("SELECT layer FROM image_layers WHERE image = ?")
        .bind(digest.clone())
        .fetch_all(&mut *connection)
        .await?;
    let layers: Result<Vec<Option<LayerDigest>>> =
        rows.iter().map(|row| read_parsed_or_null(row, "layer")).collect();
    for statement in
        ["DELETE FROM image_names WHERE image = ?", "DELETE FROM image_layers WHERE image = ?"]
    {
        sqlx::query(statement).bind(digest.clone()).execute(&mut *connection).await?;
    }
    let removed = sqlx::query("DELETE FROM images WHERE digest = ?")
        .bind(digest)
        .execute(&mut *connection)
        .await?;
    Ok(match removed.rows_affected() {
        0 => ImageRemoval::Missing,
        _ => ImageRemoval::Done(layers?.into_iter().flatten().collect()),
    })
}

/// Refuses a sandbox whose image does not exist. In the transaction that saves the sandbox, so that
/// an image cannot be removed between the check and the save.
pub(super) async fn check_sandbox_image(
    connection: &mut SqliteConnection,
    image: &str,
) -> Result<()> {
    let Some((_, hex)) = image.rsplit_once("sha256:") else { return Ok(()) };
    let found = sqlx::query("SELECT 1 FROM images WHERE digest = ?")
        .bind(format!("sha256:{hex}"))
        .fetch_optional(connection)
        .await?;
    match found {
        Some(_) => Ok(()),
        None => Err(StoreError::Conflict(format!("the image {image} was removed; pull it again"))),
    }
}
