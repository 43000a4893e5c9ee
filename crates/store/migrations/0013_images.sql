-- Images whose layers are in the layer store. A name leads to one image; an image can have several
-- names or none.

CREATE TABLE images (
    digest   TEXT PRIMARY KEY,
    record   TEXT NOT NULL,
    added_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE image_names (
    name  TEXT PRIMARY KEY,
    image TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX image_names_by_image ON image_names (image);

-- `source` is what a layer was made of, so that the same layer of another image is not made again.
-- `layer` is null for an empty layer.
CREATE TABLE image_layers (
    image    TEXT NOT NULL,
    position INTEGER NOT NULL,
    source   TEXT NOT NULL,
    layer    TEXT,
    PRIMARY KEY (image, position)
) STRICT, WITHOUT ROWID;
CREATE INDEX image_layers_by_source ON image_layers (source);
CREATE INDEX image_layers_by_layer ON image_layers (layer);
