import struct
from array import array

packed = struct.pack("<IhB", 1_000_000, -5, 7)
print(packed.hex(), struct.unpack("<IhB", packed), struct.calcsize("<IhB"))
numbers = array("d", [1.5, 2.5])
numbers.append(3.5)
print(numbers.tolist(), sum(numbers), memoryview(packed)[1:3].tolist())
