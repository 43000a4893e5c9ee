"""An OCI image layout, written layer by layer from one growing root file system."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tarfile
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

LAYER = "application/vnd.oci.image.layer.v1.tar+zstd"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
# One thread and one level, so that the same archive always gives the same bytes.
COMPRESS = ["zstd", "-q", "-9", "--single-thread", "--no-progress", "-c"]


def entry_key(status: os.stat_result) -> tuple[int, ...]:
    """What changes when a file is replaced, written or given another mode."""
    return (status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns)


class ImageLayout:
    """An OCI layout in a directory."""

    def __init__(self, directory: Path, epoch: int, architecture: str) -> None:
        self.directory, self.epoch, self.architecture = directory, epoch, architecture
        self.blobs = directory / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        # Layers are packed while the next part of the root file system is made.
        self.packers = ThreadPoolExecutor(os.cpu_count())
        self.packed: list[Future[tuple[str, dict]]] = []
        self.history: list[dict] = []
        self.seen: dict[str, tuple[int, ...]] = {}

    @property
    def created(self) -> str:
        return datetime.fromtimestamp(self.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def add_layer(self, root: Path, title: str) -> None:
        """Writes what is new or changed below `root` since the last layer, and what is gone."""
        archive = self.directory / f"layer-{len(self.packed)}.tar"
        with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
            self.write_entries(tar, root)
        self.packed.append(self.packers.submit(self.pack_layer, archive))
        self.history.append({"created": self.created, "created_by": title})

    def pack_layer(self, archive: Path) -> tuple[str, dict]:
        """Compresses an archive. Returns its digest, and the descriptor of the layer."""
        packed = archive.with_suffix(".zst")
        with archive.open("rb") as source, packed.open("wb") as target:
            compressing = subprocess.Popen(COMPRESS, stdin=source, stdout=target)
            with archive.open("rb") as file:
                diff_id = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
            if compressing.wait() != 0:
                raise OSError(f"zstd failed with {compressing.returncode}")
        archive.unlink()
        return diff_id, {**self.keep_blob(packed), "mediaType": LAYER}

    def write_entries(self, tar: tarfile.TarFile, root: Path) -> None:
        found: dict[str, tuple[int, ...]] = {}
        links: dict[int, str] = {}
        for path in sorted(root.rglob("*"), key=lambda path: path.relative_to(root).as_posix()):
            name, status = path.relative_to(root).as_posix(), path.lstat()
            found[name] = entry_key(status)
            if self.seen.get(name) == found[name]:
                continue
            self.write_entry(tar, path, name, links)
        gone = sorted(set(self.seen) - set(found))
        for name in gone:
            parent, _, base = name.rpartition("/")
            if parent and parent not in found:
                continue
            whiteout = tarfile.TarInfo(f"{parent}/.wh.{base}" if parent else f".wh.{base}")
            whiteout.mtime = self.epoch
            tar.addfile(whiteout)
        self.seen = found

    def write_entry(self, tar: tarfile.TarFile, path: Path, name: str, links: dict) -> None:
        status = path.lstat()
        info = tar.gettarinfo(path, arcname=name)
        if info is None or info.isdev():
            return
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = min(int(status.st_mtime), self.epoch)
        if info.isfile() or info.islnk():
            first = links.setdefault(status.st_ino, name)
            if first != name:
                info.type, info.linkname, info.size = tarfile.LNKTYPE, first, 0
                tar.addfile(info)
                return
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", status.st_size
            with path.open("rb") as file:
                tar.addfile(info, file)
            return
        tar.addfile(info)

    def finish(self, name: str, environment: dict[str, str]) -> str:
        """Writes config, manifest and index. Returns the digest of the manifest."""
        packed = [layer.result() for layer in self.packed]
        self.packers.shutdown()
        config = {
            "created": self.created,
            "architecture": self.architecture,
            "os": "linux",
            "config": {"Env": [f"{key}={value}" for key, value in environment.items()]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id for diff_id, _ in packed]},
            "history": self.history,
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {**self.keep_json(config), "mediaType": CONFIG},
            "layers": [layer for _, layer in packed],
        }
        entry = {
            **self.keep_json(manifest),
            "mediaType": MANIFEST,
            "platform": {"architecture": self.architecture, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": name},
        }
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]}
        (self.directory / "index.json").write_text(json.dumps(index, sort_keys=True))
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        return entry["digest"]

    def keep_json(self, value: dict) -> dict:
        file = self.directory / "blob.json"
        file.write_text(json.dumps(value, sort_keys=True, separators=(",", ":")))
        return self.keep_blob(file)

    def keep_blob(self, file: Path) -> dict:
        """Moves a file to the blobs. Returns the digest and size of its descriptor."""
        with file.open("rb") as content:
            hashed = hashlib.file_digest(content, "sha256").hexdigest()
        size = file.stat().st_size
        file.rename(self.blobs / hashed)
        return {"digest": f"sha256:{hashed}", "size": size}
