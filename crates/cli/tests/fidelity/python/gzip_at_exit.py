import csv
import gzip
import io
import os
import zipfile

raw = open(os.dup(1), "wb")
wrapped = io.TextIOWrapper(io.BufferedWriter(io.FileIO(os.dup(1), "w")))
wrapped.write("wrapped text\n")
writer = csv.writer(open(os.dup(1), "w"))
writer.writerow(["a", 1])
packed = gzip.GzipFile(fileobj=raw, mode="wb", mtime=0)
packed.write(b"packed")
archive = zipfile.ZipFile("a.zip", "w")
archive.writestr("a", "b")
