import gzip
import io
import tarfile
import zipfile
import zlib

data = b"repeat " * 1000
packed = gzip.compress(data, mtime=0)
print(len(data), gzip.decompress(packed) == data, zlib.crc32(data))
buffer = io.BytesIO()
with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("a.txt", "alpha")
    archive.writestr("b/c.txt", "gamma")
with zipfile.ZipFile(buffer) as archive:
    print(archive.namelist(), archive.read("b/c.txt"))
buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
    info = tarfile.TarInfo("x")
    info.size = 3
    archive.addfile(info, io.BytesIO(b"abc"))
buffer.seek(0)
with tarfile.open(fileobj=buffer) as archive:
    print(archive.getnames())
