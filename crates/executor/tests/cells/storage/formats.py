# Formats of data analysis, in a directory of storage. The packages are in another mount.
import os, sys

sys.path.insert(0, "/data/packages")
import h5py, numpy, openpyxl, pandas, pyarrow.parquet

os.chdir(os.environ["ROOT"])


def part(name):
    def run(body):
        try:
            body()
            print("ok", name)
        except Exception as error:
            print("FAILED", name, type(error).__name__, error)
    return run


frame = pandas.DataFrame({"region": ["north", "south"] * 5000, "amount": range(10000)})


@part("CSV")
def _():
    frame.to_csv("f.csv", index=False)
    assert pandas.read_csv("f.csv").equals(pandas.read_csv("f.csv", chunksize=999).read())
    with open("f.csv", "a") as f:
        f.write("west,7\n")
    assert len(pandas.read_csv("f.csv")) == 10001


@part("Parquet")
def _():
    frame.to_parquet("f.parquet", row_group_size=1000)
    assert pandas.read_parquet("f.parquet").amount.sum() == frame.amount.sum()
    assert len(pandas.read_parquet("f.parquet", columns=["region"]).columns) == 1
    table = pyarrow.parquet.ParquetFile("f.parquet", memory_map=True)
    assert table.read_row_group(3).num_rows == 1000


@part("Parquet in partitions")
def _():
    frame.to_parquet("parts", partition_cols=["region"])
    assert sorted(os.listdir("parts")) == ["region=north", "region=south"]
    south = pandas.read_parquet("parts", filters=[("region", "==", "south")])
    assert len(south) == 5000


@part("Feather")
def _():
    frame.to_feather("f.feather")
    assert pandas.read_feather("f.feather").equals(frame)


@part("HDF5")
def _():
    with h5py.File("f.h5", "w") as f:
        f["a"] = numpy.arange(100000)
        grows = f.create_dataset("grows", (0,), maxshape=(None,), chunks=(512,), compression="gzip")
        for i in range(20):
            grows.resize((i * 100 + 100,))
            grows[i * 100:] = i
    with h5py.File("f.h5", "r+") as f:
        f["a"][10:20] = -1
        f.create_group("later").attrs["x"] = 1
        del f["grows"]
    with h5py.File("f.h5") as f:
        assert f["a"][15] == -1 and f["a"][99999] == 99999 and list(f) == ["a", "later"]


@part("xlsx")
def _():
    frame[:500].to_excel("f.xlsx", index=False)
    book = openpyxl.load_workbook("f.xlsx")
    book.create_sheet("more")["A1"] = "text"
    book.save("f.xlsx")
    read = pandas.read_excel("f.xlsx", sheet_name=None)
    assert len(read["Sheet1"]) == 500 and list(read) == ["Sheet1", "more"]


@part("npz and npy")
def _():
    numpy.savez_compressed("f.npz", a=numpy.arange(10000), b=numpy.eye(100))
    assert numpy.load("f.npz")["b"].sum() == 100
    numpy.save("f.npy", numpy.arange(500000))
    assert numpy.load("f.npy", mmap_mode="r")[499999] == 499999
    numpy.load("f.npy", mmap_mode="r+")[7] = -7
    assert numpy.load("f.npy")[7] == -7
